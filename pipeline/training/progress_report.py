"""The lines that a run prints about itself."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import keras

from pipeline.config.config import Config
from pipeline.contracts import Batches, Decision, Info
from pipeline.data.splits import Split
from pipeline.models import _layers
from pipeline.runtime import run_directory, signals
from pipeline.runtime.cluster import Cluster
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils.console import say


def opening(
    config: Config,
    run: RunDirectory,
    *,
    info: Info,
    splits: dict[str, Split],
    model: keras.Model,
    batches: Batches,
    decisions: list[Decision],
    replicas: int,
) -> None:
    """The lines before training: data, automatic choices, model."""
    where = "(dry run: two steps on a few examples)" if config.dry_run else f"in {run}"
    say("run", f"{config.recipe} {where}")
    counts = ", ".join(f"{name} {len(split):,}" for name, split in splits.items())
    specs = next(iter(splits.values())).store.specs
    fields = ", ".join(
        f"{name} {'x'.join(map(str, spec.shape))} {spec.dtype.name}".replace("  ", " ")
        for name, spec in specs.items()
        if name != "id"
    )
    say("data", f"{counts}; {fields}")
    for note in info.notes:
        say("note", note)
    for one in decisions:
        decision(one)
    trained = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    frozen = f", {trained:,} of them trained, frozen: {' '.join(model.frozen)}"
    frozen = frozen if model.frozen else ""
    say("model", f"{config.model.name}, {model.count_params():,} parameters{frozen}")
    if replicas > 1 and _layers.normalises_apart(model):
        say(
            "note",
            "BatchNormalization uses each replica's part of a batch; "
            "--train.synchronized-batch-norm makes it use the global batch",
        )
    size, each = batches.batch_size, batches.steps_per_epoch
    say("training", f"{batches.last_step:,} steps of {size} examples, {each:,} per epoch")
    if batches.first_step:
        say("resumed", f"after step {batches.first_step:,}, from the newest intact checkpoint")
    elif run.log.is_file() and run.log.stat().st_size:
        say("note", f"{run} was trained before but has no checkpoint; training from the start")


def damaged(checkpoint: CheckpointCallback) -> None:
    """Checkpoints that could not be used."""
    for note in checkpoint.notes:
        say("damaged", f"{note}; resuming from an older checkpoint")


def again(decision: Decision, batches: Batches) -> None:
    """How the next attempt avoids a failure, and where it starts."""
    where = f"after step {batches.first_step:,}" if batches.first_step else "from the start"
    say(decision.name, f"{decision}; again {where}")


def worker(cluster: Cluster) -> None:
    """The only line of a worker that is not the chief."""
    say("worker", f"{cluster.index} of {len(cluster.workers)} trains; worker 0 prints and writes")


def finished(run: RunDirectory) -> None:
    """A repeated command found nothing left to do."""
    say("finished", f"{run} was complete; nothing was trained, tested or exported again")


@contextmanager
def interruptible(config: Config, run: RunDirectory) -> Iterator[None]:
    """Prints how to continue after Ctrl-C, a signal or a disk error, which it raises again."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, BrokenPipeError):  # nobody would read it
            raise
        asked = signals.behind(error) or isinstance(error, OSError)
        steps = run_directory.steps(run.checkpoints) if asked else []
        if steps and not config.dry_run:
            newest = f"{steps[-1]:,}"
            say(
                "stopped",
                f"the command with --run-directory {run} continues after step {newest}",
            )
        raise


def time_is_up(config: Config, checkpoint: CheckpointCallback) -> None:
    """Training ended before its last step."""
    limit, step = config.runtime.time_limit, checkpoint.step
    say("stopped", f"after step {step:,}: --runtime.time-limit {limit}; a longer limit continues")


def late(checkpoint: CheckpointCallback, limit: str | None) -> None:
    """The run exceeded its limit by more than two seconds."""
    if checkpoint.stops.over > 2:
        say(
            "note",
            f"{checkpoint.stops.over:.0f} s over --runtime.time-limit {limit}: startup, one call "
            "of the step and the end of the run take longer than the limit allows",
        )


def decision(decision: Decision) -> None:
    """An automatic choice and its reason."""
    say(decision.name, decision)
