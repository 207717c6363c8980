"""The argument of registered callbacks: information about the run."""

import dataclasses
from collections.abc import Callable
from typing import Any

from pipeline.config.sections import LogConfig, TrainConfig
from pipeline.contracts import Batches
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import StopSignals
from pipeline.training.callbacks.checkpoint import CheckpointCallback


@dataclasses.dataclass(frozen=True)
class CallbackContext:
    """Information about the run at the start of training."""

    run: RunDirectory
    """Where to write; only the chief of several workers does."""
    batches: Batches
    """The remaining training batches."""
    checkpoint: CheckpointCallback
    """The checkpoint callback: `step`, `epoch`, `history`."""
    train: TrainConfig
    log: LogConfig
    stops: StopSignals
    """Signals and the time limit."""
    time_limit: str | None
    exports: bool
    """Whether an export is written and verified after training."""
    evaluated: int
    """How many forward passes of an example follow the last step."""
    locate: Callable[[int], str]
    """Id of an example -> its name in messages."""
    is_chief: bool
    evaluate: Callable[[Any], Any] | None = None
    """Returns `metrics` and `pictures` of the final test for the validation split with
    the current weights of the model; None if there is no such split.
    """
