"""Shows the progress of training: a line per epoch, and a bar within it."""

import time
from typing import Any

import keras

from pipeline.config.registry import register
from pipeline.training.callback_context import CallbackContext
from pipeline.utils import progress_bar
from pipeline.utils.console import clock

# Shown in another form, or only in the log.
_HIDDEN = ("examples_per_second", "gradient_norm", "gradient_norm_max", "learning_rate")


@register
def progress(context: CallbackContext) -> keras.callbacks.Callback | None:
    """Shows metrics, examples per second and the remaining time."""
    return Progress(context) if context.is_chief and context.log.progress else None


class Progress(keras.callbacks.Callback):
    """Prints a line per epoch, and updates the bar after each call.

    The logs are the metrics of the epoch so far. Keras's callback list has already read
    them from the device for all callbacks, so this adds no synchronization.
    """

    def __init__(self, context: CallbackContext) -> None:
        super().__init__()
        self._batches = context.batches
        self._stops = context.stops
        self._name = ""
        self._epoch = 0
        self._start: tuple[float, int] | None = None
        """Time and step at which this process began to train."""
        self._shown = (0.0, 0)
        """Time and step of the last update, or of the beginning of the epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._name = self._name_of(epoch)
        self._shown = self._now()
        self._start = self._start or self._shown
        self._update("")

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if not progress_bar.is_due():
            return
        last_time, last_step = self._shown
        now, step = self._now()
        self._shown = (now, step)
        examples = (step - last_step) * self._batches.batch_size
        speed = examples / max(now - last_time, 1e-9)
        epoch = self._time_left(self._batches.end_of(self._epoch))
        run = self._time_left(self._batches.last_step)
        self._update(f"{epoch} left (run {run})  {_metrics(logs or {}, speed)}")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._update("validation")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        metrics = _metrics(logs, logs.get("examples_per_second"))
        left = self._time_left(self._batches.last_step)
        next_name = ""
        if epoch + 1 < self._batches.epochs:
            next_name = self._name_of(epoch + 1)
        progress_bar.finish(
            f"{self._name}  {metrics}  {left} left",
            next_name,
            epoch=epoch + 1,
            epochs=self._batches.epochs,
            step=self.model.step.position,
            metrics={name: float(value) for name, value in logs.items()},
        )

    def _name_of(self, epoch: int) -> str:
        epochs = self._batches.epochs
        return f"epoch {epoch + 1:{len(str(epochs))}}/{epochs}"

    def _update(self, text: str) -> None:
        steps = self._batches.steps_per_epoch
        done = self.model.step.position - self._epoch * steps
        progress_bar.update(self._name, text, min(1.0, done / steps))

    def _now(self) -> tuple[float, int]:
        return time.monotonic(), self.model.step.position

    def _time_left(self, end: int) -> str:
        """Returns the time until step `end` at the average speed with validation."""
        start, first = self._start or self._now()
        now, step = self._now()
        left = (now - start) / max(1, step - first) * (end - step)
        if self._stops.seconds_left is not None:
            left = min(left, max(0.0, self._stops.seconds_left))
        return clock(left)


def _metrics(logs: dict[str, Any], speed: float | None) -> str:
    texts = []
    for name, value in logs.items():
        is_hidden = name in _HIDDEN or (name == "skipped_steps" and not value)
        if not is_hidden:
            texts.append(f"{name} {_number(name, value)}")
    if speed and speed > 0:
        digits = 0 if speed >= 10 else 1
        texts.append(f"{speed:,.{digits}f} examples/s")
    return "  ".join(texts)


def _number(name: str, value: float) -> str:
    if name in ("skipped_steps", "loss_scale"):
        return f"{value:,.0f}"
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.4g}"
