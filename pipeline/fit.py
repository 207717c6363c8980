"""The whole story, top to bottom: recipe, data, model, training, test, export, proof."""

import contextlib
import dataclasses
import gc
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import cluster, command_line, console, files, outcome, run_directory, scratch
from pipeline.checked import require
from pipeline.config import Config
from pipeline.errors import Diverged, OutOfMemory, UsageError, reason, run_command, suggest
from pipeline.run_directory import RunDirectory
from pipeline.stops import TIME, Stops

if TYPE_CHECKING:  # the front door stands before TensorFlow
    import keras

    from pipeline.contracts import Batches, Task
    from pipeline.data import Data
    from pipeline.saver import Saver
    from pipeline.splits import Split


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

        from pipeline import served

        offered = self.task.serve(self.model)
        require(isinstance(signature, str), "the signature", repr(signature)[:100], "a name")
        if signature not in offered:
            raise UsageError(f"there is no signature {signature!r}; {suggest(signature, offered)}")
        function, specs = offered[signature]
        fields = {
            spec.name: served.Field(
                served.DTYPES[spec.dtype.as_datatype_enum], tuple(spec.shape.as_list())
            )
            for spec in specs
        }
        values = served.tensors(served.Signature(fields, {}), inputs)
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
    with scratch.temporary() as folder:
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
    """So many examples that no held-out part of them is empty, with odds of a billion to one."""
    shares = [share for share in (config.data.validation, config.data.test) if share]
    return max([4 * config.train.batch_size, *(math.ceil(20 / share) for share in shares)])


def _fit(config: Config) -> Run:
    stops = Stops(config.runtime.time_limit)
    with console.lasting(), stops.listening():
        return _story(config, stops)


def _story(config: Config, stops: Stops) -> Run:
    from pipeline import runtime

    start = time.monotonic()
    workers = _cluster(config)
    # Imports TensorFlow; all that follows may, too
    machine = runtime.start(config.runtime, workers, config.digest())
    from pipeline import augmenter, data, evaluate, recovery, report, stream, training
    from pipeline.contracts import Decision

    # Data: from the disk to batches
    loaded = data.load(config)
    task, splits = loaded.task, loaded.splits
    plain = stream.training(splits["train"], config.train, config.runtime.seed)
    batches, more = augmenter.placed(plain, config.data, config.runtime.seed, loaded.cache)
    held = {n: stream.evaluation(s, config.train, machine.replicas) for n, s in splits.items()}

    # Model
    plan = recovery.begun(config, machine.replicas)
    parts = (plain, batches, held.get("validation"))
    machine, model, plan = training.built(task, plan, machine, *parts)

    # Training; of several workers only the chief writes and goes on to the end
    with contextlib.ExitStack() as stack:
        if machine.is_chief:
            run = stack.enter_context(run_directory.opened(config))
            stack.enter_context(report.interruptible(config, run))
        else:
            run = RunDirectory(config.run_directory)
        saver, left = training.resumed(config, machine, model, run, batches, stops, plan)
        if machine.is_chief:
            loaded.write(run)
            forced = [Decision("changed", str(change), "--force") for change in run.changes]
            decisions = [*machine.decisions, *loaded.decisions, *more, *forced, *plan.decisions]
            files.write_json(run.decisions, [dataclasses.asdict(d) for d in decisions])
            report.opening(config, machine, run, loaded.source.info, splits, model, left, decisions)
            report.damaged(saver)
        else:
            report.worker(workers)
        while True:
            try:
                rest = (left, held, loaded.source.location)
                trained = training.trained(config, machine, model, run, saver, *rest)
                break
            except (OutOfMemory, Diverged) as error:
                plan = recovery.after(error, plan, model, machine.replicas)
            del model, saver
            gc.collect()  # before the next one needs their memory
            _, model, plan = training.built(task, plan, machine, *parts)
            saver, left = training.resumed(config, machine, model, run, batches, stops, plan)
            if machine.is_chief:
                recovery.keep(run, plan.decisions)
                report.again(plan.decisions[-1], left)
        if not machine.is_chief:
            training.end_together(machine, stops)
            return Run(config, run.path, saver.history, {}, model, task, splits, None, {})
        report.decision(saver.choose())
        model.step.update.exchange()  # tested and exported are the averaged weights, if any
        judged = next(name for name in ("test", "validation", "train") if name in splits)
        result = None if trained else outcome.finished(config, run, saver.step)
        if result is not None and judged in result:
            report.finished(run)
        else:
            result = handed_off(config, run, loaded, held, judged, model, saver, start)
            files.write_json(run.result, result)
        report.closing(config, run, result, judged)
        report.late(saver, config.runtime.time_limit)
        training.end_together(machine, stops)
    exported = Path(result["export"]) if result["export"] else None
    task, history = evaluate.calibrated_by(task, result.get("calibration", {})), saver.history
    return Run(config, run.path, history, result[judged], model, task, splits, exported, result)


def handed_off(
    config: Config,
    run: RunDirectory,
    loaded: "Data",
    held: "dict[str, Batches]",
    judged: str,
    model: "keras.Model",
    saver: "Saver",
    start: float,
) -> dict[str, Any]:
    """Answers, hand-off, proof: the run's result; one that has been through them keeps its version.

    `judged` is the split whose examples the proof asks about; `start` when this process began.
    """
    from pipeline import evaluate, report
    from pipeline.export import export

    calibration = {}
    if config.export.calibrate and "validation" in held:
        calibration = evaluate.calibration(model, loaded.task, held["validation"])
    task = evaluate.calibrated_by(loaded.task, calibration)
    # What the network says, by one trace for all splits; `task` knows what is answered for it.
    said = ((name, evaluate.answers(model, loaded.task, part)) for name, part in held.items())
    metrics = {name: task.evaluate(answers) for name, answers in said}
    evaluate.draw(task, metrics[judged], run.path)
    examples, enabled = loaded.splits[judged], config.export.enabled
    trained = {"steps": saver.step, "of": saver.last_step, "complete": saver.complete}
    trained["examples"] = {name: len(split) for name, split in loaded.splits.items()}
    trained["left_out"] = len(loaded.cleaning.dropped)
    proved = export(model, task, config, examples, metrics, trained) if enabled else None
    stopped = None if saver.complete else TIME
    seconds = time.monotonic() - start
    return report.result(config, saver, metrics, proved, seconds, stopped, calibration)


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
    """`python -m pipeline.fit [RECIPE] [--section.option VALUE ...]`; 1 if the proof failed."""
    config = command_line.configure(arguments)
    run = fit(config)
    return 0 if run.export or not config.export.enabled or not run.result else 1


if __name__ == "__main__":
    run_command(main)
