"""The whole story, top to bottom: recipe, data, model, training, test, export, proof."""

import contextlib
import dataclasses
import math
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import cluster, command_line, files, run_directory, shelf
from pipeline.config import Config
from pipeline.errors import Terminated, UsageError, run_command
from pipeline.run_directory import RunDirectory
from pipeline.stops import ELSEWHERE, TIME, Stopped, Stops

if TYPE_CHECKING:  # the front door stands before TensorFlow
    import keras

    from pipeline.contracts import Batches, Task
    from pipeline.runtime import Runtime
    from pipeline.saver import Saver
    from pipeline.splits import Split


@dataclasses.dataclass(frozen=True)
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

    def predict(self, signature: str = "serving_default", /, **inputs: Any) -> "dict[str, Any]":
        """What the exported model would answer: `run.predict(images=uint8_images)`.

        Args:
            signature: One of the names that the export offers.
            inputs: Its arguments by name, batch first; raw, as a client would send them.
        """
        import tensorflow as tf

        function, specs = self.task.serve(self.model)[signature]
        values = [tf.convert_to_tensor(inputs[spec.name], spec.dtype) for spec in specs]
        return {name: answer.numpy() for name, answer in function(*values).items()}


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
    with tempfile.TemporaryDirectory(prefix="pipeline-dry-run-") as folder:
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
    with stops.listening():
        return _story(config, stops)


def _story(config: Config, stops: Stops) -> Run:
    from pipeline import runtime

    start = time.monotonic()
    workers = _cluster(config)
    # Imports TensorFlow; all that follows may, too
    machine = runtime.start(config.runtime, workers, config.digest())
    from pipeline import augmenter, checkpoints, data, evaluate, replicas, report, stream
    from pipeline.export import export
    from pipeline.saver import Saver

    # Data: from the disk to batches
    loaded = data.load(config)
    task, splits = loaded.task, loaded.splits
    plain = stream.training(splits["train"], config.train, config.runtime.seed)
    batches, more = augmenter.placed(plain, config.data, config.runtime.seed, loaded.cache)
    held = {n: stream.evaluation(s, config.train, machine.replicas) for n, s in splits.items()}

    # Model
    with replicas.lost_workers(workers):
        machine, model = _model(task, config, machine, plain, batches, held.get("validation"))

    # Training; of several workers only the chief writes and goes on to the end
    run = run_directory.create(config) if machine.is_chief else RunDirectory(config.run_directory)
    with contextlib.ExitStack() as stack:
        if machine.is_chief:
            stack.enter_context(run.locked())
            stack.enter_context(report.interruptible(config, run))
        folder = checkpoints.Checkpoints(model.state, run.checkpoints, machine.is_chief)
        saver = Saver(folder, batches, config.train, stops, replicas.agreed)
        batches = saver.resume()
        folder.require_room()
        if machine.is_chief:
            loaded.write(run)
            decisions = [*machine.decisions, *loaded.decisions, *more]
            files.write_json(run.decisions, [dataclasses.asdict(d) for d in decisions])
            info = loaded.source.info
            report.opening(config, machine, run, info, splits, model, batches, decisions)
            report.damaged(saver)
        else:
            report.worker(workers)
        trained = _train(config, machine, model, run, saver, batches, held.get("validation"))
        if not machine.is_chief:
            return Run(config, run.path, saver.history, {}, model, task, splits, None, {})
        report.decision(saver.choose())
        model.step.update.exchange()  # tested and exported are the averaged weights, if any

        # Answers, hand-off, proof; a run that has been through them keeps its version
        judged = next(name for name in ("test", "validation", "train") if name in splits)
        result = None if trained else run_directory.finished(config, run, saver.step)
        if result is not None:
            report.finished(run)
        else:
            metrics = {name: evaluate.evaluate(model, task, part) for name, part in held.items()}
            evaluate.draw(task, metrics[judged], run.path)
            proved = export(model, task, config, splits[judged]) if config.export.enabled else None
            stopped = None if saver.complete else TIME
            seconds = time.monotonic() - start
            result = report.result(config, saver, metrics, proved, seconds, stopped)
            files.write_json(run.result, result)
        report.closing(config, run, result, judged)
    exported = Path(result["export"]) if result["export"] else None
    history, test = saver.history, result[judged]
    return Run(config, run.path, history, test, model, task, splits, exported, result)


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


def _model(
    task: "Task",
    config: Config,
    machine: "Runtime",
    plain: "Batches",
    batches: "Batches",
    validation: "Batches | None",
) -> "tuple[Runtime, keras.Model]":
    """The built model, and the machine with the precision that was chosen for it.

    `plain` are the batches without augmentation, `batches` those that the engine will get.
    """
    from pipeline import probe
    from pipeline.build import build

    def built(machine: "Runtime") -> "keras.Model":
        return build(task, config, machine, plain, augment_in_step=batches is plain)

    chosen = run_directory.decided(config.run_directory, "precision")
    if config.runtime.precision != "auto":
        return machine, built(machine)
    if chosen:
        machine = dataclasses.replace(machine, precision=chosen)
        machine = machine.decided("precision", chosen, "as this run began")
        return machine, built(machine)
    return probe.precision(machine, built, batches, validation)


def _train(
    config: Config,
    machine: "Runtime",
    model: "keras.Model",
    run: RunDirectory,
    saver: "Saver",
    batches: "Batches",
    validation: "Batches | None",
) -> bool:
    """From the first step that is left to the last, or until the time is up; whether any was."""
    from pipeline import probe, replicas, report
    from pipeline.callbacks import standard

    if saver.complete or (saver.step and saver.stops.time_is_up(replicas.agreed)):
        return False
    engine = shelf.take("engines", config.train.engine)
    with machine.strategy.scope(), replicas.lost_workers(machine.cluster):
        replicas.require_same(batches.first_step, "checkpoints", "--run-directory")
        decision = probe.steps_per_call(model, config.train.steps_per_call, batches, validation)
        callbacks = standard(config, run, batches, saver, machine.is_chief)
        if machine.is_chief:
            report.decision(decision)
        try:
            with saver.stops.deferred():
                engine(model, batches, validation, callbacks)
        except Stopped as stopped:
            saver.stops.check()
            if stopped.reason == ELSEWHERE:
                raise Terminated from None
            if machine.is_chief:
                report.time_is_up(config, saver)
    return True


def main(arguments: list[str]) -> int:
    """`python -m pipeline.fit [RECIPE] [--section.option VALUE ...]`; 1 if the proof failed."""
    config = command_line.configure(arguments)
    run = fit(config)
    return 0 if run.export or not config.export.enabled or not run.result else 1


if __name__ == "__main__":
    run_command(main)
