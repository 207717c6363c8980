"""Trains a recipe, tests it, exports it for TensorFlow Serving and verifies the
export.
"""

import contextlib
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import command_line, keras_arguments, python_call
from pipeline.config.config import RUNS, Config
from pipeline.config.request import Request
from pipeline.report.run import Run
from pipeline.runtime import cluster, run_directory, signals
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import StopSignals
from pipeline.training import preflight
from pipeline.training.resolve import resolve
from pipeline.utils import output, progress_bar, random_states, temp_files
from pipeline.utils.console import say, say_lines
from pipeline.utils.errors import run_command

if TYPE_CHECKING:  # options are checked before TensorFlow is imported
    from pipeline.contracts import Source
    from pipeline.runtime.environment import Machine
    from pipeline.training.trainer import Trainer

__all__ = ["Run", "fit", "main"]


def fit(
    recipe: Any = None,
    *positional: Any,
    model: Any = None,
    data: Any = None,
    validation_data: Any = None,
    test_data: Any = None,
    folds: int | None = None,
    class_names: Sequence[str] | None = None,
    task: Any = None,
    target: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: Any = None,
    optimizer: Any = None,
    loss: Any = None,
    loss_weights: Any = None,
    metrics: Any = None,
    callbacks: Any = None,
    run_directory: str | Path | None = None,
    **changes: Any,
) -> Run:
    """Trains a model, tests it, exports it, verifies the export, and returns the run.

    Args:
        recipe: A name, the path of your images, or a Config; None: none with `data`,
            else `digits`. Also a keras.Model: `fit(model, data=(x, y))`.
        positional: After a keras.Model, `x`, `y`, `batch_size` and `epochs`, as in
            `keras.Model.fit`.
        model: A name, a keras.Model, or a function `(input_shape, classes) ->
            keras.Model`.
        data: A path or a name, `(x, y)` or `(x, y, sample_weight)` arrays, a
            tf.data.Dataset, a keras.utils.PyDataset, a pandas table of files and
            labels, or a Hugging Face dataset.
        validation_data, test_data: Such data; None: a part of `data` is held out.
        folds: Number of folds of a cross-validation; the run that is returned is
            trained on all of `data` after them.
        class_names: Names of the labels 0, 1, ...
        task: A name, or a function that returns a Task.
        target: The column of a table to predict, or a name, such as `number`.
        epochs: Passes over the training examples.
        batch_size: Examples per step.
        learning_rate: A number, or a Keras schedule.
        optimizer: A name or a Keras optimizer.
        loss: A name, a Keras loss, or a function `(y_true, y_pred)`; for several
            outputs, a dictionary of them by output.
        loss_weights: Factors of the losses, by output.
        metrics: A list of names and Keras metrics; for several outputs, a dictionary.
        callbacks: A list of names and Keras callbacks.
        run_directory: The directory of the run; an existing run is resumed.
        changes: Sections, as for `Config.changed`: `train={"ema": 0.999}`. Of the
            arguments of `keras.Model.fit`, `x`, `y`, `sample_weight`,
            `validation_split`, `class_weight`, `steps_per_epoch`, `shuffle` and
            `verbose` are used; for all others, an error says what to write instead.

    The optimizer, loss and metrics of a compiled `model`, and the dtype policy of its
    layers, are used where the arguments say nothing; a line says so.

    Raises:
        UsageError: The request cannot be carried out.
    """
    named: dict[str, Any] = {
        "model": model,
        "data": data,
        "validation_data": validation_data,
        "test_data": test_data,
        "folds": folds,
        "class_names": class_names,
        "task": task,
        "target": target,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "optimizer": optimizer,
        "loss": loss,
        "loss_weights": loss_weights,
        "metrics": metrics,
        "callbacks": callbacks,
        "run_directory": run_directory,
    }
    mode = keras_arguments.output_mode(changes)
    with python_call.errors_in_python(), output.using(mode), random_states.preserve():
        arguments = {**named, **changes}
        arguments |= python_call.name_positional(recipe, positional, arguments)
        return run(python_call.request(recipe, arguments))


def run(request: Request, stops: StopSignals | None = None) -> Run:
    """Carries out a request; see `fit`.

    With `stops`, another thread can end the training.
    """
    stops = stops or StopSignals(request.config.runtime.time_limit)
    with output.using(request.config.log.mode):
        preflight.check(request.config, request.planned)
        if request.config.dry_run:
            with temp_files.temporary() as folder:
                finished = _fit(request, stops, folder)
        else:
            finished = _fit(request, stops)
        if output.mode() == "json" and finished.result:
            say_lines("result", repr(finished), **_summary(finished))
    return finished


def _summary(run: Run) -> dict[str, Any]:
    """The fields of the event `result` in JSON."""
    from pipeline.export import text_files

    verification = run.result.get("verification") or {}
    return {
        "run_directory": str(run.directory),
        "split": run.test_split,
        "metrics": text_files.numbers(run.test),
        "export": None if run.export is None else str(run.export),
        "verified": verification.get("passed"),
    }


def _fit(request: Request, stops: StopSignals, folder: Path | None = None) -> Run:
    """Carries out a request; in `folder` if it is a dry run."""
    options = request.config
    workers = cluster.of_run(options)
    is_chief = workers is None or workers.is_chief
    shows_bar = options.log.progress and options.log.bar and output.mode() == "text"
    if is_chief:
        say("starting", preflight.summary(options, request.planned))
    with stops.listening(), progress_bar.show(is_chief and shows_bar):
        from pipeline.runtime import environment

        start = time.monotonic()
        # Imports TensorFlow, as do the modules below
        machine = environment.start(options.runtime, workers)
        from pipeline.data import dataset
        from pipeline.training import cross_validation

        source = dataset.create_source(options)
        config = resolve(request, machine, stops.seconds_left, folder, source)
        if cross_validation.is_enabled(config):
            return _cross_validate(config, source, machine)
        return _run(config, source, machine, stops, start)


def _cross_validate(config: Config, source: "Source", machine: "Machine") -> Run:
    """Carries out a run for each fold, and then the run of all training examples."""
    from pipeline.data import dataset
    from pipeline.training import cross_validation, recovery

    limited = dataset.open_source(config, source)
    cross_validation.check(config, limited)
    config = run_directory.begin(config)
    directory = RunDirectory(Path(str(config.run_directory)))
    with recovery.report_interruption(config, directory):
        config = cross_validation.with_initial_weights(config)
        results = []
        for fold_config in cross_validation.fold_configs(config):
            result = cross_validation.finished(fold_config, limited)
            if result is None:
                result = _run_in_turn(fold_config, source, machine).result
            if not result:  # interrupted in a notebook
                return Run(config, directory.path, {}, {})
            results.append(result)
        cross_validation.finish(config, results)
        return _run_in_turn(config, source, machine)


def _run_in_turn(config: Config, source: "Source", machine: "Machine") -> Run:
    """Carries out one of several runs, with a clock of its own."""
    stops = StopSignals()
    with stops.listening():
        return _run(config, source, machine, stops, time.monotonic())


def _run(
    config: Config,
    source: "Source",
    machine: "Machine",
    stops: StopSignals,
    start: float,
) -> Run:
    """Carries out the config of a run."""
    from pipeline.data import dataset
    from pipeline.evaluation import evaluate
    from pipeline.export import formats
    from pipeline.report import input_report, target_report
    from pipeline.training import distributed, recovery, start_lines
    from pipeline.training.run_setup import RunSetup
    from pipeline.training.trainer import Trainer

    # Data and model
    data = dataset.load(config, source)
    stops.require_time("reading the data")
    setup = RunSetup(config, machine, data, stops, evaluate.evaluate)
    built = setup.build()
    evaluate.try_out(built.model, data.task, setup.batches)
    input_report.report_of(data.task.input)  # raise errors before training
    target_report.report_of(data.task.target)
    is_exported = config.export.enabled or config.data.fold is not None
    if is_exported and config.export.formats:
        formats.try_out(config, data.task, data.splits["train"])
    if not machine.is_chief:
        directory = RunDirectory(config.run_directory or RUNS)
        worker = Trainer(setup, built, directory)
        worker.train_as_worker()
        return Run(config, directory.path, worker.history, {}, trainer=worker)

    # Training, test, pictures, export, verification, report
    trainer: Trainer | None = None
    run: Run | None = None
    try:
        with (
            run_directory.open_run(config) as directory,
            recovery.report_interruption(config, directory)
            if config.data.folds is None  # otherwise, the caller reports
            else contextlib.nullcontext(),
        ):
            trainer = Trainer(setup, built, directory)
            del built  # if memory runs out, the trainer builds another
            data.write(directory)
            start_lines.show(trainer)
            run = Run(config, directory.path, {}, {}, trainer=trainer)
            is_trained = trainer.train(run)
            finished = _finish(trainer, start, is_trained)
            distributed.wait_for_workers(machine, stops)
        run = finished
    except BaseException as error:
        is_notebook = hasattr(sys, "ps1")
        is_interrupt = isinstance(signals.behind(error), KeyboardInterrupt)
        if trainer is None or not is_notebook or not is_interrupt:
            raise
        return Run(config, trainer.run.path, trainer.history, {})
    finally:
        if trainer is not None:
            trainer.callbacks.end(run)
    return run


def _finish(trainer: "Trainer", start: float, is_trained: bool) -> Run:
    """Tests, exports and reports a model; one that was finished is only reported."""
    from pipeline.export.handoff import Handoff
    from pipeline.report import results
    from pipeline.report.subject import Subject

    config = trainer.config
    path = trainer.run.path
    history = trainer.history
    handoff = Handoff(trainer, start)
    result = None if is_trained else handoff.finished_result()
    written: Path | None = trainer.run.result
    parts: dict[str, Any] = {"trainer": trainer}
    if result is None:
        tested = handoff.test()
        shown = Run(config, path, history, tested.result, trainer=trainer)
        evaluation = shown.test_evaluation(tested.table, tested.pictures)
        # Before the result is written: a resumed run tests again if this one is killed
        # here.
        if not config.dry_run:
            results.show(evaluation, path, history)
        handoff.write_summaries(tested.result)
        handoff.write(tested.result)
        result = handoff.export(tested.result)
        written = handoff.write(result)
        parts["evaluation"] = evaluation
        shown = Run(config, path, history, result, **parts)
        if not config.dry_run:
            results.write_report(Subject(evaluation, shown, trainer.data), path)
    handoff.report(result)
    parts["model"] = handoff.standalone()
    return Run(config, path, history, result, written, **parts)


def main(arguments: list[str]) -> int:
    """`pipeline fit [RECIPE or PATH] [--option VALUE ...]`.

    Returns 1 if the model is not exported in all formats, or if the result could not be
    written to the run directory.
    """
    with output.using(output.of_words(arguments)):
        request = command_line.request(arguments)
        finished = run(request)
    from pipeline.export import run_result  # imports TensorFlow

    if not finished.result:
        return 0
    is_exported = finished.export and not run_result.left_out(finished.result)
    if request.config.export.enabled and not is_exported:
        return 1
    is_written = finished.result_file == finished.directory / "result.json"
    return 0 if is_written else 1


class _CallableModule(types.ModuleType):
    """This module, which is called as its function after `from pipeline import fit`."""

    def __call__(self, *arguments: Any, **named: Any) -> Run:
        return fit(*arguments, **named)


sys.modules[__name__].__class__ = _CallableModule


if __name__ == "__main__":
    run_command(main)
