"""The lines that a run prints about itself."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.config.config import Config
from pipeline.runtime import run_directory, signals
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils.console import say


def damaged(checkpoint: CheckpointCallback) -> None:
    """Checkpoints that could not be used."""
    for note in checkpoint.notes:
        say("damaged", f"{note}; resuming from an older checkpoint")


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
