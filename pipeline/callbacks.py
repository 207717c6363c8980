"""What happens beside the step: speed, checkpoints and early stopping, the log, the progress lines.

They speak Keras's callback protocol, so both engines can drive them, and stand in the order of
`standard`: an earlier one may add to the epoch's logs for those after it.
"""

import dataclasses
import json
import math
import time
from typing import Any

import keras

from pipeline import config
from pipeline.checkpoints import Checkpoints
from pipeline.contracts import Batches, Decision
from pipeline.errors import Diverged
from pipeline.files import strict
from pipeline.run_directory import RunDirectory


def standard(
    settings: config.Config,
    run: RunDirectory,
    batches: Batches,
    saver: "Saver",
    is_chief: bool = True,
) -> list[keras.callbacks.Callback]:
    """The callbacks of every run; only the chief of several workers writes and prints."""
    callbacks = [Phases(settings.train), Updates(), Speed(batches), saver]
    if is_chief:
        callbacks.append(JsonLog(run, batches))
    if is_chief and settings.log.progress:
        callbacks.append(Progress(batches))
    if is_chief and settings.log.tensorboard:
        callbacks.append(keras.callbacks.TensorBoard(run.tensorboard, write_graph=False))
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
    """Validates with the averaged weights; adds `skipped_steps` and `loss_scale` to the logs."""

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.model.step.update.exchange()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self.model.step.update.exchange()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        update = self.model.step.update
        if update.scaled:
            logs["loss_scale"] = float(update.scale.numpy())
        if update.scaled or update.skipped:
            logs["skipped_steps"] = update.skipped


class Speed(keras.callbacks.Callback):
    """Adds `examples_per_second` to the epoch's logs: training alone, calls that trace left out."""

    def __init__(self, batches: Batches) -> None:
        super().__init__()
        self._batches = batches
        self._size = 0
        self._done = 0
        self._counted = 0
        self._seconds = 0.0
        self._last = 0.0
        self._traces = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._size = self._batches.end_of(epoch) - epoch * self._batches.steps_per_epoch
        self._done, self._counted, self._seconds = 0, 0, 0.0
        self._last = time.monotonic()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._traces = self.model.step.traces

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        now = time.monotonic()
        # Keras counts a last, shorter call as if it were whole.
        steps = min(batch + 1, self._size) - self._done
        if self.model.step.traces == self._traces:
            self._counted += steps
            self._seconds += now - self._last
        self._done += steps
        self._last = now

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        examples = self._counted * self._batches.batch_size
        logs["examples_per_second"] = examples / self._seconds if examples else math.nan


class Saver(keras.callbacks.Callback):
    """A checkpoint after each epoch; keeps the last and the best; stops when patience is over.

    The best is the one with the lowest `val_loss`; without a validation split it is the last.

    Args:
        checkpoints: Where to.
        batches: Training batches; their steps number the checkpoints.
        patience: Epochs without a new best after which training stops; None: never.
    """

    def __init__(self, checkpoints: Checkpoints, batches: Batches, patience: int | None) -> None:
        super().__init__()
        self._checkpoints = checkpoints
        self._batches = batches
        self._patience = patience
        self.step = 0
        self.stopped = False
        self.history: dict[str, list[float]] = {}
        self._best = math.inf
        self._best_step = 0
        self._waited = 0
        self._skipped = 0

    def resume(self) -> Batches:
        """Takes the run up at its newest checkpoint; returns the batches that are left."""
        if steps := self._checkpoints.steps():
            self.step = steps[-1]
            state = self._checkpoints.restore(self.step)
            self.stopped, self._waited = state["stopped"], state["waited"]
            self._best_step = state["best_step"]
            self._best = math.inf if state["best"] is None else state["best"]
            self.history = {
                name: [math.nan if value is None else value for value in values]
                for name, values in state["history"].items()
            }
            self._skipped = int(self.history.get("skipped_steps", [0])[-1])
        return dataclasses.replace(self._batches, first_step=self.step)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.step = self._batches.end_of(epoch)
        if reason := self._divergence(epoch, logs):
            raise Diverged(
                f"training diverged: {reason} of epoch {epoch + 1}; "
                "lower --train.learning-rate. Nothing of this epoch was saved"
            )
        for name, value in logs.items():
            self.history.setdefault(name, []).append(float(value))
        # A loss that is not a number is never the best.
        better = logs["val_loss"] < self._best if "val_loss" in logs else True
        self._waited = 0 if better else self._waited + 1
        if better:
            self._best, self._best_step = float(logs.get("val_loss", 0.0)), self.step
        if self._patience is not None and self._waited >= self._patience:
            self.stopped = self.model.stop_training = True
        state = {
            "history": self.history,
            "stopped": self.stopped,
            "best": self._best,
            "best_step": self._best_step,
            "waited": self._waited,
        }
        self._checkpoints.save(self.step, state)
        self._checkpoints.keep({self.step, self._best_step})

    def _divergence(self, epoch: int, logs: dict[str, Any]) -> str | None:
        if not math.isfinite(logs["loss"]):
            return f"{logs['loss']} is the loss"
        # A loss scale that may still fall explains skipped steps; nothing else mends them.
        steps = self.step - epoch * self._batches.steps_per_epoch
        skipped = logs.get("skipped_steps", 0) - self._skipped
        self._skipped += skipped
        if 2 * skipped > steps and logs.get("loss_scale", 1.0) <= 1.0:
            return f"the gradient was not finite in {skipped} of {steps} steps"
        return None

    def choose(self) -> Decision:
        """Leaves the weights to be used in the model: the best under patience, else the last."""
        if self._patience is None or not self._best_step:
            return Decision(
                "weights", f"step {self.step}", "the last; --train.patience takes the best"
            )
        self._checkpoints.restore(self._best_step)
        return Decision("weights", f"step {self._best_step}", f"lowest val_loss, {self._best:.4f}")


class JsonLog(keras.callbacks.Callback):
    """One JSON object per epoch in `log.jsonl`: epoch, step, seconds and all metrics."""

    def __init__(self, run: RunDirectory, batches: Batches) -> None:
        super().__init__()
        self._path = run.log
        self._batches = batches
        self._start = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        step = self._batches.end_of(epoch)
        seconds = round(time.monotonic() - self._start, 3)
        values = {name: float(value) for name, value in logs.items()}
        with self._path.open("a", encoding="utf-8") as file:
            entry = {"epoch": epoch + 1, "step": step, "seconds": seconds, **values}
            file.write(json.dumps(strict(entry)) + "\n")


# Shown in a way of its own, or only in the log.
_UNSAID = ("examples_per_second", "gradient_norm", "gradient_norm_max")


class Progress(keras.callbacks.Callback):
    """One line per epoch: metrics, images per second, time left."""

    def __init__(self, batches: Batches) -> None:
        super().__init__()
        self._batches = batches
        self._epochs = batches.epochs
        self._first_epoch = batches.first_step // batches.steps_per_epoch
        self._start = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        speed = logs.get("examples_per_second")
        metrics = "  ".join(
            f"{name} {_number(name, value)}" for name, value in logs.items() if name not in _UNSAID
        )
        done = epoch + 1 - self._first_epoch
        left = (time.monotonic() - self._start) / done * (self._epochs - epoch - 1)
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
