"""Exports a run that began with Python objects: from its files, without the objects."""

import io
from typing import Any

import keras
import numpy as np

from pipeline.config import objects, registry
from pipeline.config.config import Config
from pipeline.data.example_store import Memory
from pipeline.data.split_names import SPLITS, judged
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.export import run_report, savedmodel
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training.stepped_model import SteppedModel
from pipeline.utils import files, npz, safe_io
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, reason


def write_examples(run: RunDirectory, examples: Split) -> None:
    """Writes the decoded examples that the golden answers are for into the run."""
    columns = savedmodel.golden_examples(examples)
    contents = io.BytesIO()
    np.savez_compressed(contents, allow_pickle=False, **columns)
    files.write_bytes(run.examples, contents.getvalue())


def export_again(config: Config, run: RunDirectory) -> dict[str, Any]:
    """Exports `model.keras` with the metrics of `result.json`; returns the new result.

    Raises UsageError if one of the files is missing or damaged.
    """
    try:
        result = files.expand_home(safe_io.read_json(run.result))
        columns = npz.read(run.examples, 2**32)
        examples = Split(Memory(columns), np.arange(len(columns["id"])))
        metrics = {name: result[name] for name in SPLITS if name in result}
        trained, calibration = result["trained"], result["calibration"]
        digest = result["config_digest"]
        model = network(config, run)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"{run} cannot be exported without its Python objects: {reason(error)}; pass them "
            "again: fit(..., run_directory=...)"
        ) from None
    say("run", f"{config.recipe} in {run}: {run.model.name} and {len(examples)} stored examples")
    run_report.tested(config, result, judged(metrics))
    precision = run_directory.decided(run.path, "precision") or "the precision of training"
    say("note", f"nothing is measured again: the metrics are those of {run.result}, in {precision}")
    outcome = savedmodel.export(
        config=config,
        model=model,
        task=evaluate.calibrated_by(model.task, calibration if config.export.calibrate else {}),
        examples=examples,
        metrics=metrics,
        trained=trained,
        digest=digest,
    )
    result["export"] = str(outcome.directory) if outcome.passed else None
    result["verification"] = outcome.as_json()
    run_report.exported(config, run, result)
    return result


def network(config: Config, run: RunDirectory) -> SteppedModel:
    """The trained network in `model.keras`, with its task."""
    metadata = safe_io.read_json(run.metadata)
    if not objects.is_text_only(config.model.name):
        registry.load("models", config.model.name)  # defines its own layers, if it has any
    plain = keras.models.load_model(run.model, compile=False)
    (network,) = [layer for layer in plain.layers if layer.name == "network"] or [plain]
    model = SteppedModel(network.inputs, network.outputs)
    model.task = registry.call("tasks", config.task.name, config.task.options, metadata)
    return model
