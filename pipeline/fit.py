"""Trains a recipe, tests it, exports it for TensorFlow Serving and verifies the export."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import command_line
from pipeline.config.config import Config
from pipeline.report.run import Run
from pipeline.runtime import cluster, run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import Stops
from pipeline.training import preflight
from pipeline.utils import temp_files
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, run_command

if TYPE_CHECKING:  # arguments are checked before TensorFlow is imported
    from pipeline.training.trainer import Trainer

__all__ = ["Run", "fit", "main"]


def fit(recipe: str | Config = "digits", **changes: Any) -> Run:
    """Trains a recipe, tests it, exports it and verifies the export.

    Args:
        recipe: Name of a recipe, a dotted name, or a Config.
        changes: Changes to the config, as in `fit("digits", train={"epochs": 3})`; see
            `Config.changed`.

    Returns:
        The finished run.

    Raises:
        UsageError: The request cannot be carried out.
    """
    if not isinstance(recipe, str | Config):
        raise UsageError(f"a recipe must be a name or a Config; got {recipe!r}")
    config = command_line.recipe(recipe) if isinstance(recipe, str) else recipe
    config = config.changed(**changes)
    preflight.check(config)
    if not config.dry_run:
        return _fit(config)
    with temp_files.temporary() as folder:
        # About four batches of training examples.
        share = 1 - config.data.validation - config.data.test
        few = math.ceil(4 * config.train.batch_size / share)
        return _fit(
            config.changed(
                run_directory=Path(folder, "run"),
                export={"directory": Path(folder, "saved_models")},
                data={"limit": min(few, config.data.limit or few)},
                train={"steps": 2},
            )
        )


def _fit(config: Config) -> Run:
    stops = Stops(config.runtime.time_limit)
    with stops.listening():
        return _run(config, stops)


def _run(config: Config, stops: Stops) -> Run:
    from pipeline.runtime import environment

    start = time.monotonic()
    workers = cluster.of_run(config)
    # Imports TensorFlow, as do the modules below
    machine = environment.start(config.runtime, workers, config.digest())
    from pipeline.data import dataset
    from pipeline.evaluation import evaluate
    from pipeline.export.handoff import Handoff, evaluation_split
    from pipeline.training import recovery
    from pipeline.training.trainer import Trainer

    # Data and model
    data = dataset.load(config)
    trainer = Trainer(config, machine, data, stops)
    trainer.build()
    if workers is not None and not workers.is_chief:
        return _work(trainer, workers)

    # Training
    with run_directory.opened(config) as run, recovery.interruptible(config, run):
        trainer.resume(run)
        data.write(run)
        trainer.report()
        trained = trainer.train()

        # Test, export, verification
        handoff = Handoff(
            config=config,
            run=run,
            data=data,
            evaluated=trainer.evaluated,
            model=trainer.model,
            checkpoint=trainer.checkpoint,
            start=start,
        )
        result, written = handoff.conclude(trained)
        trainer.wait_for_workers()
    return Run(
        config=config,
        directory=run.path,
        history=trainer.checkpoint.history,
        test=result[evaluation_split(data.splits)],
        model=trainer.model,
        task=evaluate.calibrated_by(data.task, result.get("calibration", {})),
        splits=data.splits,
        export=Path(result["export"]) if result["export"] else None,
        result=result,
        result_file=written,
    )


def _work(trainer: "Trainer", workers: cluster.Cluster) -> Run:
    """Trains in a worker other than the chief, which writes, tests and exports."""
    config, data = trainer.config, trainer.data
    trainer.resume(RunDirectory(config.run_directory or run_directory.RUNS))
    index, count = workers.index, len(workers.workers)
    say("worker", f"{index} of {count} trains; worker 0 prints and writes")
    trainer.train()
    trainer.wait_for_workers()
    path, history, model = trainer.run.path, trainer.checkpoint.history, trainer.model
    return Run(config, path, history, {}, model, data.task, data.splits, None, {}, None)


def main(arguments: list[str]) -> int:
    """`python -m pipeline.fit [RECIPE] [--section.option VALUE ...]`.

    Returns 1 if there is no export, or if the result could not be written to the run directory.
    """
    config = command_line.configure(arguments)
    run = fit(config)
    good = run.export or not config.export.enabled
    written = run.result_file == run.directory / "result.json"
    return 0 if not run.result or (good and written) else 1


if __name__ == "__main__":
    run_command(main)
