"""Early stopping: ends training when the validation no longer improves."""

import math
from typing import Any

import keras


class EarlyStopping(keras.callbacks.Callback):
    """As `keras.callbacks.EarlyStopping`, but its state is saved in checkpoints.

    It comes right before the checkpoint callback, which restores the best weights.

    Args:
        patience: Number of epochs without improvement after which
            training ends; None: training does not end early.
        monitor: The value in the logs. It may be missing in some epochs, unless it is
            `val_loss`, which is missing only if there is no validation split.
        direction: 1 if higher is better, -1 if lower is better.
    """

    def __init__(
        self, patience: int | None, monitor: str = "val_loss", direction: int = -1
    ) -> None:
        super().__init__()
        self.patience = patience
        self.monitor = monitor
        self.direction = direction
        self.best = -direction * math.inf
        """The best value."""
        self.wait = 0
        """Number of values since then."""
        self.improved = False
        """Whether the last epoch is the best so far, as always without validation."""

    @property
    def is_exhausted(self) -> bool:
        """Whether patience is exhausted."""
        return self.patience is not None and self.wait >= self.patience

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        value = logs.get(self.monitor)
        if value is None:
            self.improved = self.monitor == "val_loss"
            return
        # A NaN is never the best.
        self.improved = self.direction * (value - self.best) > 0
        if self.improved:
            self.best = float(value)
            self.wait = 0
        else:
            self.wait += 1
        if self.is_exhausted:
            self.model.stop_training = True

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint: plain JSON."""
        return {"best": self.best, "wait": self.wait}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        best = state["best"]
        # JSON has no infinity: `files.strict`.
        self.best = -self.direction * math.inf if best is None else best
        self.wait = state["wait"]
