"""A progress line for each epoch."""

import time
from typing import Any

import keras

from pipeline.training.callback_context import CallbackContext

# Shown in another form, or only in the log.
_HIDDEN = ("examples_per_second", "gradient_norm", "gradient_norm_max", "learning_rate")


def progress(context: CallbackContext) -> keras.callbacks.Callback | None:
    """Prints one line per epoch: metrics, examples per second, time left."""
    return Progress(context) if context.is_chief and context.log.progress else None


class Progress(keras.callbacks.Callback):
    """Prints one line per epoch."""

    def __init__(self, context: CallbackContext) -> None:
        super().__init__()
        self._batches, self._stops = context.batches, context.stops
        self._start = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        speed, epochs = logs.get("examples_per_second"), self._batches.epochs
        metrics = "  ".join(
            f"{name} {_number(name, value)}"
            for name, value in logs.items()
            if name not in _HIDDEN and (value or name != "skipped_steps")
        )
        done = epoch + 1 - self._batches.first_epoch
        left = (time.monotonic() - self._start) / done * (epochs - epoch - 1)
        if self._stops.left is not None:
            left = min(left, max(0.0, self._stops.left))
        print(
            f"epoch {epoch + 1:{len(str(epochs))}}/{epochs}  {metrics}"
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
