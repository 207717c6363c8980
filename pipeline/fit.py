"""The whole story, top to bottom: recipe, data, model, training, test, export, proof."""

import contextlib
import dataclasses
import gc
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import command_line
from pipeline.config.config import Config
from pipeline.config.validation import require
from pipeline.export import run_result
from pipeline.runtime import cluster, run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import TIME, Stops
from pipeline.utils import console, files, temp_files
from pipeline.utils.errors import Diverged, OutOfMemory, UsageError, reason, run_command, suggest

if TYPE_CHECKING:  # the front door stands before TensorFlow
    import keras

    from pipeline.contracts import Batches, Task
    from pipeline.data.dataset import Data
    from pipeline.data.splits import Split
    from pipeline.training.callbacks.checkpoint import Saver


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """What `fit` returns."""

    config: Config
    directory: Path
    """Config, log, checkpoints, pictures, result.json."""
    history: dict[str, list[float]]
    """Metric -> value per epoch."""
    test: dict[str, Any]
    """Metrics of the test split, or of the validation split where there is no test split."""
    model: "keras.Model"
    """The bare network, from prepared inputs to outputs; `predict` starts from raw ones."""
    task: "Task"
    splits: dict[str, "Split"]
    """Decoded examples: train, validation, test."""
    export: Path | None
    """The published version, such as saved_models/digits/1."""
    result: dict[str, Any]
    """What `result.json` holds; empty in a worker that is not the chief."""
    result_file: Path | None
    """`result.json`: in `directory`, or in a temporary folder if that could not be written; None
    if neither could, and in a worker that is not the chief."""

    def __repr__(self) -> str:
        """What a notebook shows: not the arrays."""
        test = {name: round(v, 4) for name, v in self.test.items() if isinstance(v, float)}
        return f"Run(directory={str(self.directory)!r}, test={test}, export={str(self.export)!r})"

    def predict(self, signature: str = "serving_default", /, **inputs: Any) -> "dict[str, Any]":
        """What the exported model would answer: `run.predict(images=uint8_images)`.

        Args:
            signature: One of the names that the export offers.
            inputs: Its arguments by name, batch first; raw, as a client would send them.

        Raises:
            UsageError: No such signature or input; values that would change with its type, as
                pixels from 0 to 1 for uint8; or what a server would refuse.
        """
        import tensorflow as tf

        from pipeline.serving import signatures

        offered = self.task.serve(self.model)
        require(isinstance(signature, str), "the signature", repr(signature)[:100], "a name")
        if signature not in offered:
            raise UsageError(f"there is no signature {signature!r}; {suggest(signature, offered)}")
        function, specs = offered[signature]
        fields = {
            spec.name: signatures.Field(
                signatures.DTYPES[spec.dtype.as_datatype_enum], tuple(spec.shape.as_list())
            )
            for spec in specs
        }
        values = signatures.tensors(signatures.Signature(fields, {}), inputs)
        for spec in specs:
            if not spec.shape.is_compatible_with(values[spec.name].shape):
                shape = f"received {[*values[spec.name].shape]}"
                raise UsageError(f"{spec.name} must be {fields[spec.name]}, {shape}")
        try:
            answers = function(*(tf.constant(values[spec.name], spec.dtype) for spec in specs))
        except tf.errors.InvalidArgumentError as error:
            raise UsageError(reason(error)) from None
        return {name: answer.numpy() for name, answer in answers.items()}


def fit(recipe: str | Config = "digits", **changes: Any) -> Run:
    """Trains a recipe, tests it, exports it and proves the export.

    Args:
        recipe: Name of a function in `recipes.py`, or a Config.
        changes: As for `Config.changed`: `fit("digits", train={"epochs": 3})`.

    Raises:
        UsageError: The request cannot be carried out; nothing has been changed on the disk.
    """
    if not isinstance(recipe, str | Config):
        raise UsageError(f"a recipe is a name or a Config, received {recipe!r}")
    config = command_line.recipe(recipe) if isinstance(recipe, str) else recipe
    config = config.changed(**changes)
    run_directory.check(config)
    if not config.dry_run:
        return _fit(config)
    with temp_files.temporary() as folder:
        few = _enough(config)
        return _fit(
            config.changed(
                run_directory=Path(folder, "run"),
                export={"directory": Path(folder, "saved_models")},
                data={"limit": min(few, config.data.limit or few)},
                train={"steps": 2},
            )
        )


def _enough(config: Config) -> int:
    """So many examples that about four batches of them are not held out."""
    share = 1 - config.data.validation - config.data.test
    return math.ceil(4 * config.train.batch_size / share)


def _fit(config: Config) -> Run:
    stops = Stops(config.runtime.time_limit)
    with console.lasting(), stops.listening():
        return _story(config, stops)


def _story(config: Config, stops: Stops) -> Run:
    from pipeline.runtime import environment

    start = time.monotonic()
    workers = _cluster(config)
    # Imports TensorFlow; all that follows may, too
    machine = environment.start(config.runtime, workers, config.digest())
    from pipeline.contracts import Decision
    from pipeline.data import augmentation, batching, dataset
    from pipeline.evaluation import evaluate
    from pipeline.training import progress_report, recovery, trainer

    # Data: from the disk to batches
    loaded = dataset.load(config)
    task, splits = loaded.task, loaded.splits
    plain = batching.training(splits["train"], config.train, config.runtime.seed)
    batches, more = augmentation.placed(plain, config.data, config.runtime.seed, loaded.cache)
    held = {n: batching.evaluation(s, config.train, machine.replicas) for n, s in splits.items()}

    # Model
    plan = recovery.begun(config, machine.replicas)
    parts = (plain, batches, held.get("validation"))
    machine, model, plan = trainer.built(task, plan, machine, *parts)

    # Training; of several workers only the chief writes and goes on to the end
    with contextlib.ExitStack() as stack:
        if machine.is_chief:
            run = stack.enter_context(run_directory.opened(config))
            stack.enter_context(progress_report.interruptible(config, run))
        else:
            run = RunDirectory(config.run_directory)
        saver, left = trainer.resumed(config, machine, model, run, batches, stops, plan)
        if machine.is_chief:
            loaded.write(run)
            forced = [Decision("changed", str(change), "--force") for change in run.changes]
            decisions = [*machine.decisions, *loaded.decisions, *more, *forced, *plan.decisions]
            files.write_json(run.decisions, [dataclasses.asdict(d) for d in decisions])
            progress_report.opening(
                config, machine, run, loaded.source.info, splits, model, left, decisions
            )
            progress_report.damaged(saver)
        else:
            progress_report.worker(workers)
        while True:
            try:
                rest = (left, held, loaded.source.location)
                trained = trainer.trained(config, machine, model, run, saver, *rest)
                break
            except (OutOfMemory, Diverged) as error:
                plan = recovery.after(error, plan, model, machine.replicas)
            del model, saver
            gc.collect()  # before the next one needs their memory
            _, model, plan = trainer.built(task, plan, machine, *parts)
            saver, left = trainer.resumed(config, machine, model, run, batches, stops, plan)
            if machine.is_chief:
                recovery.keep(run, plan.decisions)
                progress_report.again(plan.decisions[-1], left)
        if not machine.is_chief:
            trainer.end_together(machine, stops)
            return Run(config, run.path, saver.history, {}, model, task, splits, None, {}, None)
        result, written = _concluded(config, run, loaded, held, model, saver, trained, start)
        trainer.end_together(machine, stops)
    exported = Path(result["export"]) if result["export"] else None
    task, history = evaluate.calibrated_by(task, result.get("calibration", {})), saver.history
    judged = _judged(splits)
    told = (result[judged], model, task, splits, exported, result, written)
    return Run(config, run.path, history, *told)


def _judged(splits: Mapping[str, Any]) -> str:
    """The split by which the model is judged."""
    return next(name for name in ("test", "validation", "train") if name in splits)


def _concluded(
    config: Config,
    run: RunDirectory,
    loaded: "Data",
    held: "dict[str, Batches]",
    model: "keras.Model",
    saver: "Saver",
    trained: bool,
    start: float,
) -> tuple[dict[str, Any], Path | None]:
    """Test and export of what was trained: the result, and the path it was written to."""
    from pipeline.training import progress_report

    fallback = run_result.fallback(run)
    saver.save_unsaved(fallback.checkpoints)
    progress_report.decision(saver.choose())
    model.step.update.exchange()  # tested and exported are the averaged weights, if any
    judged = _judged(held)
    result = None if trained else run_result.finished(config, run, saver.step)
    written, why = run.result, ""
    if result is not None and judged in result:
        progress_report.finished(run)
        progress_report.tested(config, result, judged)
    else:
        result = tested(config, run, loaded, held, judged, model, saver, start)
        run_result.write(result, run, fallback)  # already now: the export may be killed
        progress_report.tested(config, result, judged)
        result = handed_off(config, loaded, judged, model, saver, result, start)
        written, why = run_result.write(result, run, fallback)
    if not config.dry_run:
        progress_report.written(run, fallback, saver, written, why)
    progress_report.closing(config, run, result)
    progress_report.late(saver, config.runtime.time_limit)
    return result, written


def tested(
    config: Config,
    run: RunDirectory,
    loaded: "Data",
    held: "dict[str, Batches]",
    judged: str,
    model: "keras.Model",
    saver: "Saver",
    start: float,
) -> dict[str, Any]:
    """The result of a run that is not exported yet: the metrics of each split, and its calibration.

    `judged` is the split that the pictures show; `start` when this process began.
    """
    from pipeline.evaluation import evaluate
    from pipeline.training import progress_report

    calibration = {}
    if config.export.calibrate and "validation" in held:
        calibration = evaluate.calibration(model, loaded.task, held["validation"])
    task = evaluate.calibrated_by(loaded.task, calibration)
    # What the network says, by one trace for all splits; `task` knows what is answered for it.
    said = ((name, evaluate.answers(model, loaded.task, part)) for name, part in held.items())
    metrics = {name: task.evaluate(answers) for name, answers in said}
    evaluate.draw(task, metrics[judged], run.path)
    stopped = None if saver.complete else TIME
    return progress_report.result(
        config, saver, metrics, time.monotonic() - start, stopped, calibration
    )


def handed_off(
    config: Config,
    loaded: "Data",
    judged: str,
    model: "keras.Model",
    saver: "Saver",
    result: dict[str, Any],
    start: float,
) -> dict[str, Any]:
    """What `tested` returned, with the export and its proof, or the reason why there is none.

    `judged` is the split whose examples the proof asks about.
    """
    from pipeline.evaluation import evaluate
    from pipeline.export.savedmodel import export
    from pipeline.verify import Check, Verification

    if not config.export.enabled:
        return result
    task = evaluate.calibrated_by(loaded.task, result["calibration"])
    metrics = {name: result[name] for name in loaded.splits if name in result}
    trained = {"steps": saver.step, "of": saver.last_step, "complete": saver.complete}
    trained["examples"] = {name: len(split) for name, split in loaded.splits.items()}
    trained["left_out"] = len(loaded.cleaning.dropped)
    place, why = run_directory.export_directory(config), ""
    try:
        proved = export(model, task, config, loaded.splits[judged], metrics, trained)
    except BrokenPipeError:  # nobody reads what it prints
        raise
    except OSError as error:  # as of a full disk; the run is trained and tested all the same
        why = f"{place} cannot be written: {error.strerror or error}"
    except UsageError as error:
        why = str(error)
    if why:
        proved = Verification(place, (Check(run_result.NOT_EXPORTED, False, why),))
    return {
        **result,
        "seconds": round(time.monotonic() - start, 2),
        "export": str(proved.directory) if proved.passed else None,
        "verification": proved.as_json(),
    }


def _cluster(config: Config) -> cluster.Cluster | None:
    """The workers of TF_CONFIG, if this run can have several."""
    workers = cluster.read()
    if workers and config.train.engine == "model_fit":
        raise UsageError(
            "TF_CONFIG names several workers, under which Keras's own fit crashes; "
            "use --train.engine gradient_tape"
        )
    if workers and config.clean.enabled:
        raise UsageError(
            "TF_CONFIG names several workers, which must leave out the same examples: run "
            "python -m pipeline.clean once, and give all of them its --clean.manifest"
        )
    if workers and (config.run_directory is None or config.dry_run):
        raise UsageError(
            "TF_CONFIG names several workers, which must agree on one run: give "
            "--run-directory, on a disk that all share, and no --dry-run"
        )
    return workers


def main(arguments: list[str]) -> int:
    """`python -m pipeline.fit [RECIPE] [--section.option VALUE ...]`; 1 if there is no export, or
    the run directory could not take the result."""
    config = command_line.configure(arguments)
    run = fit(config)
    good = run.export or not config.export.enabled
    written = run.result_file == run.directory / "result.json"
    return 0 if not run.result or (good and written) else 1


if __name__ == "__main__":
    run_command(main)
