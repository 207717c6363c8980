"""What a run says of itself: the lines on the console and `result.json`."""

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
    say(
        "model",
        f"{config.model.name}, {model.count_params():,} parameters{frozen if model.frozen else ''}",
    )
    if replicas > 1 and _layers.normalises_apart(model):
        say(
            "note",
            "BatchNormalization sees each replica's part of a batch; "
            "--train.synchronized-batch-norm makes it see the whole",
        )
    size, each = batches.batch_size, batches.steps_per_epoch
    say("training", f"{batches.last_step:,} steps of {size} examples, {each:,} an epoch")
    if batches.first_step:
        say("resumed", f"after step {batches.first_step:,}, from the newest whole checkpoint")
    elif run.log.is_file() and run.log.stat().st_size:
        say("note", f"{run} was trained before, but has no checkpoint any more: from the start")


def damaged(saver: CheckpointCallback) -> None:
    """Checkpoints that were found and could not be used."""
    for note in saver.notes:
        say("damaged", f"{note}; the one before it is taken")


def again(decision: Decision, batches: Batches) -> None:
    """A fault was mended by this; where training goes on."""
    where = f"after step {batches.first_step:,}" if batches.first_step else "from the start"
    say(decision.name, f"{decision}; again {where}")


def worker(cluster: Cluster) -> None:
    """All that a worker says which is not the chief."""
    say("worker", f"{cluster.index} of {len(cluster.workers)} trains; worker 0 prints and writes")


def finished(run: RunDirectory) -> None:
    """A run given again that needs nothing more."""
    say("finished", f"{run} was complete; nothing was trained, tested or exported again")


@contextmanager
def interruptible(config: Config, run: RunDirectory) -> Iterator[None]:
    """Says on Ctrl-C, a signal, or an error of the disk how to go on; passes them on."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, BrokenPipeError):  # nobody reads what would be said
            raise
        asked = signals.behind(error) or isinstance(error, OSError)
        steps = run_directory.steps(run.checkpoints) if asked else []
        if steps and not config.dry_run:
            newest = f"{steps[-1]:,}"
            say("stopped", f"the command with --run-directory {run} goes on after step {newest}")
        raise


def time_is_up(config: Config, saver: CheckpointCallback) -> None:
    """Training ended before its last step."""
    limit = config.runtime.time_limit
    say("stopped", f"after step {saver.step:,}: --runtime.time-limit {limit}; a longer one goes on")


def late(saver: CheckpointCallback, limit: str | None) -> None:
    """The run took longer than it may; two seconds are nothing."""
    if saver.stops.over > 2:
        say(
            "note",
            f"{saver.stops.over:.0f} s over --runtime.time-limit {limit}: to begin, a call of the "
            "step and to end take longer than that leaves",
        )


def decision(decision: Decision) -> None:
    """An automatic choice and why it was made."""
    say(decision.name, decision)
