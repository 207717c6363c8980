"""What happens beside the step: phases, averaged weights, speed, the progress lines.

They speak Keras's callback protocol, so both engines can drive them.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import keras

from pipeline.config import config
from pipeline.contracts import Batches
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import Stops
from pipeline.training.callbacks.checkpoint import Saver
from pipeline.training.callbacks.metric_logger import Journal
from pipeline.training.time_budget import Pace, Reserve


def standard(
    settings: config.Config,
    run: RunDirectory,
    batches: Batches,
    saver: Saver,
    agreed: Callable[[float], float] = float,
    judged: int = 0,
    is_chief: bool = True,
) -> list[keras.callbacks.Callback]:
    """The callbacks of every run; only the chief of several workers writes and prints.

    An earlier one may add to the epoch's logs for those after it; what the journal writes has been
    saved. `judged` examples are evaluated after training; `agreed` is the mean of a number over all
    workers.
    """
    reserve = Reserve(saver.stops, batches, judged, settings.export.enabled)
    callbacks = [Phases(settings.train), Updates(), Speed(batches), reserve, saver]
    if settings.runtime.time_limit:
        callbacks.insert(-1, Pace(saver.stops, batches, agreed))
    if is_chief:
        callbacks.append(Journal(run, batches, saver, settings.log.tensorboard))
    if is_chief and settings.log.progress:
        callbacks.append(Progress(batches, saver.stops))
    return callbacks


class Phases(keras.callbacks.Callback):
    """Trains frozen layers from an epoch on."""

    def __init__(self, options: config.Train) -> None:
        super().__init__()
        self._epochs = options.freeze_epochs

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._epochs is not None and epoch >= self._epochs and not self.model.step.phase:
            for layer in self.model._flatten_layers(include_self=False):
                if layer.name in self.model.frozen:
                    layer.trainable = True
            self.model.step.phase = 1


class Updates(keras.callbacks.Callback):
    """Validates with the averaged weights; adds to the logs what the update rule knows:
    `skipped_steps`, `loss_scale`, `learning_rate`."""

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.model.step.update.exchange()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self.model.step.update.exchange()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        update = self.model.step.update
        if update.scaled:
            logs["loss_scale"] = float(update.scale.numpy())
        # Always, as the history has one value per epoch.
        logs["skipped_steps"] = update.skipped
        logs["learning_rate"] = float(self.model.optimizer.learning_rate)  # of the next step


class Speed(keras.callbacks.Callback):
    """Adds `examples_per_second` to the epoch's logs: training alone, calls that trace left out."""

    def __init__(self, batches: Batches) -> None:
        super().__init__()
        self._batches = batches
        self._done = 0
        self._counted = 0
        self._seconds = 0.0
        self._last = 0.0
        self._traces = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._done, self._counted, self._seconds = self.model.step.position, 0, 0.0
        self._last = time.monotonic()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._traces = self.model.step.traces

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        now, done = time.monotonic(), self.model.step.position
        if self.model.step.traces == self._traces:
            self._counted += done - self._done
            self._seconds += now - self._last
        self._done, self._last = done, now

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        examples = self._counted * self._batches.batch_size
        logs["examples_per_second"] = examples / self._seconds if examples else math.nan


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
