"""The lines that a run prints about itself."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.config.config import Config
from pipeline.runtime import run_directory, signals
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils.console import say


def damaged(checkpoint: CheckpointCallback) -> None:
    """Prints the checkpoints that could not be used."""
    for note in checkpoint.notes:
        say("damaged", f"{note}; resuming from an older checkpoint")


@contextmanager
def interruptible(config: Config, run: RunDirectory) -> Iterator[None]:
    """After Ctrl-C, a signal or a disk error, prints how to continue; raises the error again."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, BrokenPipeError):  # nothing reads the output
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
