"""The hand-off: a SavedModel, all that belongs to it, proved, published."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config.config import Config
from pipeline.contracts import Task
from pipeline.data import batching
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.export import deployment_files, manifest_writer, model_card, proof, warmup
from pipeline.export.verification import Check, Verification, verify
from pipeline.runtime import environment, run_directory
from pipeline.serving import repository
from pipeline.training.model_builder import SteppedModel, twin
from pipeline.utils import files, temp_files
from pipeline.utils.errors import UsageError, reason

# Golden examples: at most so many, and at most so many bytes of decoded columns.
_GOLDEN_EXAMPLES = 64
_GOLDEN_BYTES = 4_000_000
# Weights stay float32, as they were trained.
_POLICIES = {"float32": "float32", "float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}


def export(
    model: SteppedModel,
    task: Task,
    config: Config,
    examples: Split,
    metrics: Mapping[str, Mapping[str, Any]] | None = None,
    trained: Mapping[str, Any] | None = None,
) -> Verification:
    """Writes the next version of the model; it becomes visible only if its verification passes, and
    if it is not worse than the version that is served by more than `--export.tolerance`.

    Args:
        model: Trained, in any precision.
        task: Gives the signatures; calibrated, if that is wanted (`evaluate.calibrated`).
        config: Sections source, model and export, the recipe's name, and all for the model card.
        examples: Real examples the model was not trained on; some are stored with their answers.
        metrics: Split -> what `Task.evaluate` said of it, for the card and the manifest.
        trained: For these, too: `steps` that were taken, `of` so many, whether that is `complete`,
            the `examples` of each split, and how many were `left_out` as unfit.

    Returns:
        What was verified, and where the version lies. If a check failed, the folder keeps its
        hidden name, which no server reads; so does one that is worse, with a check that says so.
    """
    parent = run_directory.export_directory(config)
    folder = temp_files.folder(parent)
    try:
        about = write(folder, model, task, config, examples, metrics=metrics or {}, trained=trained)
        outcome = verify(folder)
        if not outcome.passed:
            return outcome
        # Who finds a version finds how to serve it.
        beside = (parent, about["signatures"], about["options"]["batch_sizes"])
        ready = functools.partial(deployment_files.write, *beside)
        published = repository.publish(folder, parent, config.export, task.selection_metric, ready)
    except BaseException:
        temp_files.remove(folder)
        raise
    for note in published.notes:
        print(note, flush=True)
    checks = outcome.checks
    if published.quality is not None:
        checks = (*checks, Check("quality", not published.refused, published.quality))
    return Verification(published.directory, checks)


def write(
    folder: Path,
    model: SteppedModel,
    task: Task,
    config: Config,
    examples: Split,
    *,
    metrics: Mapping[str, Mapping[str, Any]],
    trained: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes all files of a version into an empty folder; arguments as of `export`.

    Returns what the manifest says, but for its files.
    """
    same = twin(model, task, config.model, _POLICIES[config.export.precision])
    # One graph of the network, in all signatures; without it each would have its own.
    network = tf.function(lambda x, training: same(x, training=training), autograph=False)
    endpoints = {
        name: (tf.function(function, specs, autograph=False), specs)
        for name, (function, specs) in task.serve(network).items()
    }
    _save(folder, endpoints)
    made = manifest_writer.digests(folder)
    answers = golden(task, endpoints, examples)
    proof.write_golden(folder / proof.GOLDEN, answers)
    requests = {name: sides["inputs"] for name, sides in answers.items()}
    name = run_directory.export_directory(config).name
    warmup.write(folder / warmup.FILE, name, requests, config.export.batch_sizes)
    judged = next((split for split in ("test", "validation", "train") if split in metrics), None)
    if judged and same.dtype_policy.name != model.dtype_policy.name:
        # What is published is judged, not what was trained: 16 bits may cost more than a digit.
        batches = batching.evaluation(examples, config.train)
        metrics = {**metrics, judged: evaluate.evaluate(same, task, batches)}
    about = {
        "name": name,
        "recipe": config.recipe,
        "config_digest": config.digest(),
        "task": config.task.name,
        "versions": environment.versions(),
        "parameters": model.count_params(),
        "precision": config.export.precision,
        "trained_precision": model.dtype_policy.name,
        "temperature": task.metadata.get("temperature"),
        "class_names": task.metadata.get("class_names"),
        "feature_names": task.metadata.get("feature_names"),
        "signatures": {
            key: {side: _described(a) for side, a in sides.items()}
            for key, sides in answers.items()
        },
        "options": manifest_writer.options(config.export),
        "trained": dict(trained or {}),
        "judged": judged,
        "metrics": model_card.numbers(metrics.get(judged, {})),
        "compared": len(next(iter(requests["serving_default"].values()))),
        "difference": difference(model, task, answers["serving_default"]),
    }
    card = model_card.text(config, about, metrics, task.limitations(), made)
    files.write_text(folder / model_card.FILE, card)
    manifest_writer.write(folder, about)
    return about


def _save(folder: Path, endpoints: Mapping[str, tuple[Any, list[tf.TensorSpec]]]) -> None:
    """The SavedModel of these signatures; equal programs and weights give equal files.

    Not by `keras.export.ExportArchive` (Keras 3.15.1): it lists the variables as a set has them,
    in the order of their addresses, and that is another in each process.
    """
    functions = {
        name: function.get_concrete_function(*specs)
        for name, (function, specs) in endpoints.items()
    }
    used = {id(v.handle): v for function in functions.values() for v in function.variables}
    captured = [id(value) for f in functions.values() for value in f.captured_inputs]
    module = tf.Module()
    module.weights = [used[handle] for handle in dict.fromkeys(captured) if handle in used]
    try:
        tf.saved_model.save(module, str(folder), signatures=functions)
    except tf.errors.OpError as error:  # a full disk, as TensorFlow says it
        raise UsageError(f"{folder.parent} cannot be written: {reason(error)}") from None


def golden(task: Task, endpoints: dict, examples: Split) -> dict[str, dict[str, dict]]:
    """Signature -> {inputs, outputs} for the first examples, answered by the model in Python."""
    each = sum(column[:1].nbytes for column in examples.take(np.arange(1)).values())
    count = min(len(examples), _GOLDEN_EXAMPLES, max(3, _GOLDEN_BYTES // each))
    requests = task.requests(examples.take(np.arange(count)))
    return {
        name: {"inputs": inputs, "outputs": _answers(*endpoints[name], inputs)}
        for name, inputs in requests.items()
    }


def difference(
    model: SteppedModel, task: Task, golden: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """How far the stored answers are from those of the model as it was trained.

    Returns:
        Output -> the largest difference of its numbers; for whole numbers and texts, how many are
        others.
    """
    function, specs = task.serve(model)["serving_default"]
    trained = _answers(tf.function(function, specs, autograph=False), specs, golden["inputs"])
    return {
        name: float(np.abs(given - trained[name]).max())
        if given.dtype.kind == "f"
        else int((given != trained[name]).sum())
        for name, given in golden["outputs"].items()
    }


def _answers(function: Any, specs: list[tf.TensorSpec], inputs: Mapping[str, Any]) -> dict:
    outputs = function(*(tf.constant(inputs[spec.name], spec.dtype) for spec in specs))
    return {name: value.numpy() for name, value in outputs.items()}


def _described(arrays: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Name -> dtype and shape; the batch, which comes first, may have any length."""
    described = {}
    for name, values in arrays.items():
        text = not isinstance(values, np.ndarray) or values.dtype.kind == "O"
        shape = [None, *np.shape(values)[1:]]
        described[name] = {"dtype": "string" if text else values.dtype.name, "shape": shape}
    return described
