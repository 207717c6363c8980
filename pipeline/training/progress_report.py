"""The lines that a run prints about itself."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.config.config import Config
from pipeline.contracts import Decision
from pipeline.runtime import run_directory, signals
from pipeline.runtime.cluster import Cluster
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils.console import say


def damaged(checkpoint: CheckpointCallback) -> None:
    """Checkpoints that could not be used."""
    for note in checkpoint.notes:
        say("damaged", f"{note}; resuming from an older checkpoint")


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
