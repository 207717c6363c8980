"""The progress line of each epoch."""

import time
from typing import Any

import keras

from pipeline.contracts import Batches
from pipeline.runtime.signals import Stops
from pipeline.training.callback_context import CallbackContext


def progress(context: CallbackContext) -> keras.callbacks.Callback | None:
    """Prints one line per epoch: metrics, examples per second, time left."""
    if context.is_chief and context.log.progress:
        return Progress(context.batches, context.stops)
    return None


# Shown in a way of its own, or only in the log.
_UNSAID = ("examples_per_second", "gradient_norm", "gradient_norm_max", "learning_rate")


class Progress(keras.callbacks.Callback):
    """One line per epoch: metrics, images per second, time left."""

    def __init__(self, batches: Batches, stops: Stops) -> None:
        super().__init__()
        self._batches, self._stops = batches, stops
        self._epochs = batches.epochs
        self._first_epoch = batches.first_epoch
        self._start = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        speed = logs.get("examples_per_second")
        metrics = "  ".join(
            f"{name} {_number(name, value)}"
            for name, value in logs.items()
            if name not in _UNSAID and (value or name != "skipped_steps")
        )
        done = epoch + 1 - self._first_epoch
        left = (time.monotonic() - self._start) / done * (self._epochs - epoch - 1)
        if self._stops.left is not None:
            left = min(left, max(0.0, self._stops.left))
        width = len(str(self._epochs))
        print(
            f"epoch {epoch + 1:{width}}/{self._epochs}  {metrics}"
            + (f"  {speed:,.0f} examples/s" if speed and speed > 0 else "")
            + f"  {_clock(left)} left",
            flush=True,
        )


def _number(name: str, value: float) -> str:
    if name in ("skipped_steps", "loss_scale"):
        return f"{value:,.0f}"
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.4g}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
