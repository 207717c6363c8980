"""The end of a run: tests, exports and verifies the trained model; exports it again
later.
"""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from pipeline.config import objects, registry
from pipeline.config.config import Config
from pipeline.contracts import Metadata, Task
from pipeline.data import dataset, split_names
from pipeline.data.example_store import MemoryStore
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.export import formats, run_result, savedmodel
from pipeline.runtime import run_directory
from pipeline.runtime.environment import Runtime
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import StopSignals
from pipeline.training import event_files
from pipeline.training.model_builder import twin
from pipeline.training.train_step import SteppedModel
from pipeline.training.trainer import Trainer
from pipeline.utils import npz, progress_bar, safe_io
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, reason


def restored(config: Config, machine: Runtime) -> Trainer:
    """The newest checkpoint of an earlier run, without writing to the run.

    Raises UsageError if the data or the checkpoints of the run cannot be used.
    """
    trainer = Trainer(config, machine, dataset.load(config), StopSignals())
    trainer.build()
    trainer.resume(RunDirectory(Path(str(config.run_directory))), writes=False)
    return trainer


class Handoff:
    """Tests, exports and publishes a trained model.

    `trainer` has resumed, and perhaps trained; `start` is `time.monotonic()` at the
    start of this process.
    """

    def __init__(self, trainer: Trainer, start: float) -> None:
        self.config, self.run, self.data = trainer.config, trainer.run, trainer.data
        self.model, self.checkpoint = trainer.model, trainer.checkpoint
        self.evaluated, self.start = trainer.evaluated, start
        self.answers: dict[str, np.ndarray] = {}
        """Those of the evaluation split, calibrated, after the test."""

    def conclude(
        self, trained: bool, show: Callable[[dict[str, Any]], None]
    ) -> tuple[dict[str, Any], Path | None]:
        """Tests, exports and reports; returns the result and the path of `result.json`.

        A finished run keeps its result unless this process `trained`. After a test,
        `show` is called with the result and draws the `answers`.
        """
        fallback = run_result.fallback(self.run)
        self.checkpoint.save_unsaved(fallback.checkpoints)
        self.choose_weights()
        self.model.give_back()
        judged = split_names.judged(self.evaluated)
        step = self.checkpoint.step
        result = None if trained else run_result.finished(self.config, self.run, step)
        written: Path | None = self.run.result
        why = ""
        if result is not None and judged in result:
            say(
                "finished",
                f"{self.run} was complete; nothing was trained, tested or exported"
                " again",
            )
            run_result.report_test(self.config, result, judged)
        else:
            result = self._test()
            show(
                result
            )  # before there is a result: if killed, a resumed run tests again
            run_result.write(result, self.run, fallback)  # the export may be killed
            if self.config.log.tensorboard:
                epoch = max(0, self.checkpoint.epoch - 1)
                event_files.write_results(self.run, judged, epoch, result[judged])
            result = self._export(result)
            written, why = run_result.write(result, self.run, fallback)
        if not self.config.dry_run:
            run_result.report_files(self.run, fallback, self.checkpoint, why)
        run_result.report_export(self.config, self.run, result)
        return result, written

    def standalone(self) -> keras.Model:
        """The trained network as a plain Keras model; `model.keras` has the same
        answers.

        In the file, the network is one layer, so that a later process can export it.
        """
        model, path = self.model, self.run.model
        if model.dtype_policy.name != "float32":
            model = twin(model, self.data.task, self.config.model)
        plain = model.plain(is_nested=True)
        kinds = {type(layer) for layer in plain._flatten_layers(include_self=False)}
        if own := sorted(
            k.__name__ for k in kinds if not k.__module__.startswith("keras.")
        ):
            needed = (
                "needs the definition of these layers before Keras loads it:"
                f" {', '.join(own)}"
            )
            say("note", f"{path.name} {needed}")
        try:
            formats.write_keras(path, plain, self.data.metadata)
            if objects.has_object(
                dataclasses.asdict(self.config)
            ):  # a later process has no data
                examples = self.data.splits[split_names.judged(self.evaluated)]
                npz.write(self.run.examples, savedmodel.golden_examples(examples))
        except (OSError, ValueError, TypeError, NotImplementedError) as error:
            say("note", f"{path} cannot be written: {reason(error)}")
        return model.plain()

    def export_again(self) -> dict[str, Any]:
        """Tests, exports and reports, but does not write to the run; returns the
        result.
        """
        self.choose_weights()
        result = self._export(self._test())
        run_result.report_export(self.config, self.run, result)
        return result

    def choose_weights(self) -> None:
        """Gives the model the best or the last weights, or their averages if there are
        any.
        """
        weights = self.checkpoint.choose()
        say(weights.name, weights)
        self.model.step.update.swap_ema()  # the averaged weights, if any

    def _test(self) -> dict[str, Any]:
        """The result before the export: metrics of each split, calibration."""
        task, evaluated = self.data.task, self.evaluated
        count = sum(len(self.data.splits[name]) for name in evaluated)
        progress_bar.stage("testing", f"{count:,} examples")
        calibration: Metadata = {}
        if self.config.export.calibrate and "validation" in evaluated:
            calibration = evaluate.calibration(
                self.model, task, evaluated["validation"]
            )
        calibrated = evaluate.calibrated_by(task, calibration)
        judged, metrics = split_names.judged(evaluated), {}
        for name, batches in evaluated.items():
            # One trace of the network for all splits, regardless of the calibration.
            answers = evaluate.answers(self.model, task, batches)
            metrics[name] = evaluate.measured(self.model, calibrated, answers)
            if name == judged:
                self.answers = evaluate.answered(
                    calibrated, answers, self.data.splits[name]
                )
        seconds = time.monotonic() - self.start
        result = run_result.measured(
            self.config, self.checkpoint, metrics, seconds, calibration
        )
        result["trained"] = {
            "steps": self.checkpoint.step,
            "of": self.checkpoint.batches.last_step,
            "complete": self.checkpoint.complete,
            "examples": {name: len(split) for name, split in self.data.splits.items()},
            "left_out": len(self.data.cleaning.dropped),
        }
        run_result.report_test(self.config, result, judged)
        return result

    def _export(self, result: dict[str, Any]) -> dict[str, Any]:
        """The result of `_test` with the export and its verification, or why there is
        none.
        """
        if not self.config.export.enabled:
            return result
        progress_bar.stage(
            "exporting", "the model, and verifying it in another process"
        )
        task = evaluate.calibrated_by(self.data.task, result["calibration"])
        examples = self.data.splits[split_names.judged(self.evaluated)]
        result = _exported(self.config, self.model, task, examples, result)
        return {**result, "seconds": round(time.monotonic() - self.start, 2)}


def _exported(
    config: Config,
    model: SteppedModel,
    task: Task,
    examples: Split,
    result: dict[str, Any],
    **about: Any,
) -> dict[str, Any]:
    """The result of a test with the export and its verification."""
    metrics = {name: result[name] for name in split_names.SPLITS if name in result}
    about |= {"metrics": metrics, "trained": result["trained"]}
    outcome = savedmodel.export(model, task, config, examples, **about)
    directory = str(outcome.directory) if outcome.passed else None
    return {**result, "export": directory, "verification": outcome.as_json()}


def export_stored(config: Config, run: RunDirectory) -> dict[str, Any]:
    """Exports `model.keras` with the metrics of `result.json`; returns the new result.

    Raises UsageError if one of the files is missing or damaged.
    """
    try:
        result = safe_io.read_json(run.result)
        columns = npz.read(run.examples, 2**32)
        examples = Split(MemoryStore(columns), np.arange(len(columns["id"])))
        _, calibration, digest = (
            result[n] for n in ("trained", "calibration", "config_digest")
        )
        model = stored_network(config, run)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"{run} cannot be exported without its Python objects: {reason(error)};"
            " pass them again: fit(..., run_directory=...)"
        ) from None
    say(
        "run",
        f"{config.recipe} in {run}: {run.model.name} and {len(examples)} stored"
        " examples",
    )
    run_result.report_test(config, result, split_names.judged(result))
    precision = (
        run_directory.decided(run.path, "precision") or "the precision of training"
    )
    say(
        "note",
        f"nothing is measured again: the metrics are those of {run.result}, in"
        f" {precision}",
    )
    task = evaluate.calibrated_by(
        model.task, calibration if config.export.calibrate else {}
    )
    result = _exported(config, model, task, examples, result, digest=digest)
    run_result.report_export(config, run, result)
    return result


def stored_network(config: Config, run: RunDirectory) -> SteppedModel:
    """The trained network in `model.keras`, with its task."""
    metadata = safe_io.read_json(run.metadata)
    if not objects.is_text_only(config.model.name):
        registry.load(
            "models", config.model.name
        )  # defines its own layers, if it has any
    plain = keras.models.load_model(run.model, compile=False)
    (network,) = [layer for layer in plain.layers if layer.name == "network"] or [plain]
    model = SteppedModel(network.inputs, network.outputs)
    model.task = registry.call("tasks", config.task.name, config.task.options, metadata)
    model.is_own = bool(metadata.get("raw"))
    return model
