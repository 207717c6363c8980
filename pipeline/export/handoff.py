"""Tests, exports and verifies a trained model at the end of a run, or later again."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

from pipeline.config import objects, registry
from pipeline.config.config import Config
from pipeline.contracts import Metadata, Task
from pipeline.data import batching, dataset, split_names
from pipeline.data.example_store import MemoryStore
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.export import formats, run_result, savedmodel
from pipeline.layers.nested import all_layers
from pipeline.runtime import run_directory
from pipeline.runtime.environment import Machine
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import StopSignals
from pipeline.training import cross_validation, stored_losses, tensorboard, user_model
from pipeline.training.model_builder import copy_network, of_user_network
from pipeline.training.run_setup import RunSetup
from pipeline.training.train_step import SteppedModel
from pipeline.training.trainer import Trainer
from pipeline.utils import npz, progress_bar, safe_io
from pipeline.utils.console import join_words, say
from pipeline.utils.errors import UsageError, reason


def restore_trainer(config: Config, machine: Machine) -> Trainer:
    """Restores the newest checkpoint of an earlier run, without writing to the run.

    Raises UsageError if the data or the checkpoints of the run cannot be used, or if
    there is no checkpoint.
    """
    run = RunDirectory(Path(str(config.run_directory)))
    run_directory.require_checkpoint(run)
    setup = RunSetup(config, machine, dataset.load(config), StopSignals())
    return Trainer(setup, setup.build(), run, writes=False)


@dataclasses.dataclass(frozen=True)
class Tested:
    """The result of the final test before the export, and what is shown of it."""

    result: dict[str, Any]
    table: dict[str, np.ndarray]
    """The table of calibrated predictions for the test split."""
    pictures: dict[str, np.ndarray]
    """Pictures of these predictions."""


class Handoff:
    """Tests, exports and publishes a trained model.

    Sets the best or the last weights, or their averages if there are any.

    Args:
        trainer: It has perhaps trained.
        start: `time.monotonic()` at the start of this process.
        writes: Whether to write to the run: first a checkpoint that could not be saved,
            and in the end the result.
    """

    def __init__(self, trainer: Trainer, start: float, writes: bool = True) -> None:
        self.config = trainer.config
        self.run = trainer.run
        self.data = trainer.data
        self.model = trainer.model
        self.checkpoint = trainer.checkpoint
        self.evaluated = trainer.setup.evaluation_batches
        self.start = start
        self._was_timed_out = trainer.has_used_time_limit()
        self.test_split = split_names.evaluation_split(self.evaluated)
        """The split of the final test: test, or else validation, or else train."""
        self._fallback = run_result.fallback(self.run)
        self._why = ""
        """Why the result could not be written to the run directory."""
        if writes:
            self.checkpoint.save_unsaved(self._fallback.checkpoints)
        weights = self.checkpoint.restore_final_weights()
        say(weights.name, weights)
        self._weights = str(weights)
        self.model.step.update.swap_ema()  # the averaged weights, if any
        if writes and self.config.data.fold is None:
            # The next fold begins with the original.
            user_model.copy_weights_to_original(self.model.user)

    def finished_result(self) -> dict[str, Any] | None:
        """The result of a run that was complete when this process began; None if there
        is none.
        """
        step = self.checkpoint.step
        result = run_result.load_result(self.config, self.run, step)
        if result is None or self.test_split not in result:
            return None
        say(
            "finished",
            f"{self.run} was complete; nothing was trained, tested or exported again",
        )
        run_result.report_test(self.config, result, self.test_split)
        return result

    def write(self, result: dict[str, Any]) -> Path | None:
        """Writes `result.json`, also before an export, which may be killed; returns its
        path.
        """
        written, self._why = run_result.write(result, self.run, self._fallback)
        return written

    def report(self, result: dict[str, Any]) -> None:
        """Prints which files were written, and the export."""
        if not self.config.dry_run:
            run_result.report_files(
                self.run, self._fallback, self.checkpoint, self._why
            )
        run_result.report_export(self.config, self.run, result)

    def standalone(self) -> keras.Model:
        """Writes `model.keras`, and returns the network as a plain Keras model.

        In the file, the network is a single layer, so that a later process can export
        it.
        """
        model = self.model
        path = self.run.model
        if model.dtype_policy.name != "float32":
            model = copy_network(model, self.data.task, self.config.model)
        plain = model.user.model if model.user else model.to_keras_model(is_nested=True)
        kinds = {type(layer) for layer in all_layers(plain)}
        custom = [kind for kind in kinds if not kind.__module__.startswith("keras.")]
        if custom:
            names = ", ".join(sorted(kind.__name__ for kind in custom))
            say(
                "note",
                f"{path.name} needs the definition of these layers before Keras loads"
                f" it: {names}",
            )
        try:
            formats.write_keras(path, plain, self.data.metadata)
            # A later process does not have the Python objects, such as the data.
            if objects.has_object(dataclasses.asdict(self.config)):
                examples = self.data.splits[self.test_split]
                npz.write(self.run.examples, savedmodel.golden_examples(examples))
        except (OSError, ValueError, TypeError, NotImplementedError) as error:
            say("note", f"{path} cannot be written: {reason(error)}")
        self._write_losses()
        return model.to_keras_model()

    def _write_losses(self) -> None:
        """Writes the losses and metrics for a user's network, for a later process."""
        task = self.data.task
        if not task.user_outputs:
            return
        from_logits = self.model.from_logits
        try:
            stored_losses.write(self.run.losses, self.config.train, task, from_logits)
        except (OSError, ValueError, TypeError, NotImplementedError) as error:
            say("note", f"{self.run.losses} cannot be written: {reason(error)}")

    def export_again(self) -> dict[str, Any]:
        """Tests, exports and reports without writing to the run; returns the result."""
        result = self.test().result
        if not self._was_timed_out:  # but interrupted
            result["trained"]["stopped"] = None
        result = self._add_export(result)
        run_result.report_export(self.config, self.run, result)
        return result

    def test(self) -> Tested:
        """Measures each split, and calibrates."""
        task = self.data.task
        evaluated = self.evaluated
        counts = [f"{len(self.data.splits[name]):,} {name}" for name in evaluated]
        progress_bar.stage("testing", f"{join_words(counts)} examples")
        calibration: Metadata = {}
        if self.config.export.calibrate and "validation" in evaluated:
            calibration = evaluate.calibration(
                self.model, task, evaluated["validation"]
            )
        calibrated = evaluate.apply_calibration(task, calibration)
        metrics = {}
        training = batching.evaluation(self.data.splits["train"], self.config.train)
        for name, batches in evaluated.items():
            evaluation = evaluate.evaluate(
                self.model,
                calibrated,
                batches,
                training=training if name == self.test_split else None,
            )
            metrics[name] = evaluation.metrics
            if name == self.test_split:
                tested = evaluation
        if self.data.whole_test is not None and self.test_split == "test":
            batches = batching.evaluation(self.data.whole_test, self.config.train)
            whole = evaluate.evaluate(self.model, calibrated, batches).metrics
            metrics["test"]["with_copies"] = {
                name: value
                for name, value in whole.items()
                if isinstance(value, int | float)
            }
        seconds = time.monotonic() - self.start
        result = run_result.summarize(
            self.config, self.checkpoint, metrics, seconds, calibration
        )
        result["best_epoch"] = self.checkpoint.best_epoch
        result["weights"] = self._weights
        result["selection_metric"] = list(task.target.selection_metric)
        result["no_better_than"] = (
            evaluation_of(task.target).no_better_than(result[self.test_split]) or None
        )
        if summary := cross_validation.read(self.run):
            result["cross_validation"] = summary
        result["trained"] = {
            "steps": self.checkpoint.step,
            "of": self.checkpoint.batches.last_step,
            "complete": self.checkpoint.complete,
            "stopped": result["stopped"],
            "examples": {name: len(split) for name, split in self.data.splits.items()},
            "left_out": len(self.data.cleaning.excluded),
        }
        run_result.report_test(self.config, result, self.test_split)
        return Tested(result, tested.table, tested.pictures)

    def write_summaries(self, result: dict[str, Any]) -> None:
        """Writes the metrics and the pictures of the test for TensorBoard."""
        if self.config.log.tensorboard:
            epoch = max(0, self.checkpoint.epoch - 1)
            metrics = result[self.test_split]
            tensorboard.write_results(self.run, self.test_split, epoch, metrics)

    def export(self, result: dict[str, Any]) -> dict[str, Any]:
        """Exports the model, if requested, and adds the export and the seconds of each
        stage to the result.
        """
        result = self._add_export(result)
        result["stages"] = progress_bar.stage_seconds(self.start)
        return result

    def _add_export(self, result: dict[str, Any]) -> dict[str, Any]:
        """Exports the model, if requested, and adds the export to the result."""
        if not self.config.export.enabled:
            return result
        progress_bar.stage(
            "exporting", "the model, and verifying it in another process"
        )
        task = evaluate.apply_calibration(self.data.task, result["calibration"])
        examples = self.data.splits[self.test_split]
        result = _export(self.config, self.model, task, examples, result)
        return {**result, "seconds": round(time.monotonic() - self.start, 2)}


def _export(
    config: Config,
    model: SteppedModel,
    task: Task,
    examples: Split,
    result: dict[str, Any],
    digest: str | None = None,
) -> dict[str, Any]:
    """Exports a model; returns the result of its test with export and verification."""
    trained = dict(result["trained"])
    if "cross_validation" in result:
        trained["cross_validation"] = result["cross_validation"]["metrics"]
    outcome = savedmodel.export(
        model,
        task,
        config,
        examples,
        metrics={name: result[name] for name in split_names.SPLITS if name in result},
        trained=trained,
        digest=digest,
    )
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
        if "trained" not in result:
            raise KeyError("trained")
        calibration = result["calibration"]
        digest = result["config_digest"]
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
    run_result.report_test(config, result, split_names.evaluation_split(result))
    precision = run_directory.saved_decision(run.path, "precision")
    say(
        "note",
        f"nothing is measured again: the metrics are from {run.result}, in"
        f" {precision or 'the precision of training'}",
    )
    if not config.export.calibrate:
        calibration = {}
    task = evaluate.apply_calibration(model.task, calibration)
    result = _export(config, model, task, examples, result, digest=digest)
    run_result.report_export(config, run, result)
    return result


def stored_network(config: Config, run: RunDirectory) -> SteppedModel:
    """Loads the trained network from `model.keras`, with its task."""
    metadata = safe_io.read_json(run.metadata)
    if not objects.is_text_only(config.model.name):
        # Importing the model defines its custom layers, if it has any.
        registry.load("models", config.model.name)
    plain = keras.models.load_model(run.model, compile=False)
    task = dataset.create_task(config, metadata)
    if task.user_outputs:
        from_logits = stored_losses.from_logits(run.losses)
        model = of_user_network(plain, plain, task.input.inputs(), task, from_logits)
        return stored_losses.restore(run.losses, model)
    (network,) = [layer for layer in plain.layers if layer.name == "network"] or [plain]
    return SteppedModel(network.inputs, network.output, task=task)
