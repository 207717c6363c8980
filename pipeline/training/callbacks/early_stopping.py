"""Early stopping: ends training when `val_loss` no longer improves."""

import math
from typing import Any

import keras


class EarlyStopping(keras.callbacks.Callback):
    """As `keras.callbacks.EarlyStopping`, but its state is saved in checkpoints.

    It comes right before the checkpoint callback, which restores the best weights.

    Args:
        patience: Number of epochs without a lower `val_loss` after which training
            ends; None: training does not end early.
    """

    def __init__(self, patience: int | None) -> None:
        super().__init__()
        self.patience = patience
        self.best = math.inf
        """The lowest `val_loss`."""
        self.wait = 0
        """Number of epochs since then."""
        self.improved = False
        """Whether the last epoch is the best so far, as always without `val_loss`."""

    @property
    def is_exhausted(self) -> bool:
        """Whether patience is exhausted."""
        return self.patience is not None and self.wait >= self.patience

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        # A NaN is never the best.
        self.improved = "val_loss" not in logs or logs["val_loss"] < self.best
        if self.improved:
            self.best = float(logs.get("val_loss", 0.0))
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
        # JSON has no infinity: `files.strict`.
        self.best = math.inf if state["best"] is None else state["best"]
        self.wait = state["wait"]
