"""Saves checkpoints during training, and resumes from them."""

import contextlib
import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import keras

from pipeline.config import config
from pipeline.contracts import Batches, Decision
from pipeline.runtime.signals import TIME, Stopped, StopSignals
from pipeline.training import checkpoints
from pipeline.training.checkpoint_retention import Retention
from pipeline.training.checkpoints import WRITE_ERRORS, Checkpoints, Damaged
from pipeline.training.distributed import mean_over_workers
from pipeline.utils.console import pluralize, say
from pipeline.utils.errors import reason

# At the end of an epoch, saves only after this many times the duration of the last
# save. This keeps the cost below 2%, however short the epochs are. With 50, a run of
# 14 s spent 2.1%, including the save at the end of training.
_MIN_SAVE_INTERVAL = 60


class CheckpointCallback(keras.callbacks.Callback):
    """Saves during training, and before it ends on request.

    If a checkpoint cannot be written, for example because the disk is full, training
    continues until the next one is due.

    Args:
        checkpoints: Where to save.
        early_stopping: The callback right before this one; knows the best epoch.
        batches: All training batches; their steps number the checkpoints.
        options: `checkpoint_*` are used.
        stops: Tells after each call whether training should end.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        early_stopping: keras.callbacks.Callback,
        batches: Batches,
        options: config.TrainConfig,
        stops: StopSignals | None = None,
    ) -> None:
        super().__init__()
        self._checkpoints = checkpoints
        self.early_stopping = early_stopping
        self.batches = batches
        self._options = options
        self.stops = stops or StopSignals()
        self.step = 0
        self.epoch = 0
        """Number of completed epochs."""
        self.ended = False
        """Whether another callback has set `model.stop_training`."""
        self.has_same_order = True
        """Whether the examples have the same order as in the restored checkpoint."""
        self.history: dict[str, list[float]] = {}
        self.seconds: list[float] = []
        """Seconds since the start of the run, at the end of each epoch."""
        self._best_step = 0
        self._retention = Retention()
        self._last_save = time.monotonic()
        self._cost = 0.0
        """Duration of the last save in seconds."""
        self.unsaved = ""
        """Why the last save failed; empty if it succeeded."""
        self._unsaved_state: dict[str, Any] = {}
        self._running: list[list[str]] | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing is left to train."""
        if self.early_stopping.is_exhausted or self.ended:
            return True
        if self.epoch >= self.batches.epochs:
            return True
        return self.step > self.batches.last_step  # `--force` has shortened the run

    @property
    def best_epoch(self) -> int | None:
        """The number of epochs after which the weights were best; None without
        patience.
        """
        if self.early_stopping.patience is None or not self._best_step:
            return None
        return -(-self._best_step // self.batches.steps_per_epoch)

    @property
    def why_early(self) -> str:
        """Why training has ended before its last epoch; empty if it has not."""
        if self.epoch >= self.batches.epochs:
            return ""
        stopping = self.early_stopping
        if stopping.is_exhausted:
            word = "higher" if stopping.direction > 0 else "lower"
            epochs = pluralize(stopping.wait, "epoch")
            return f"no {word} {stopping.monitor} for {epochs} (--train.patience)"
        return "a callback" if self.ended else ""

    def resume(self) -> Batches:
        """Restores the newest undamaged checkpoint; returns the remaining batches.

        Prints the problem of each newer checkpoint. Raises NoCheckpoint if all are
        damaged.
        """
        newest = self._checkpoints.restore_newest()
        if newest:
            self.step, state, problems = newest
            self._restore_state(state)
            for problem in problems:
                say("damaged", f"{problem}; resuming from an older checkpoint")
            self._prune()  # the process may have ended before it could
            if self.step < self.batches.end_of(self.epoch - 1):
                # A smaller `--train.steps` ended this epoch early. It continues.
                self.epoch -= 1
                self.seconds = self.seconds[:-1]
                self.history = {
                    name: values[:-1] for name, values in self.history.items()
                }
        return dataclasses.replace(
            self.batches,
            first_step=self.step,
            first_epoch=min(self.epoch, self.batches.epochs),
        )

    def _restore_state(self, state: dict[str, Any]) -> None:
        """Restores what `_state` returned."""
        self.has_same_order = state["order"] == self._order_checksum(self.step)
        self.early_stopping.restore(state["early_stopping"])
        self.ended = state["ended"]
        self.seconds = state["seconds"]
        self._best_step = state["best_step"]
        self._running = state["running"]
        self.epoch = len(self.seconds)
        self.history = {
            name: [math.nan if value is None else value for value in values]
            for name, values in state["history"].items()
        }
        self._retention = Retention(state["saved"])
        self.stops.resume(state["elapsed"])

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        # After a checkpoint within this epoch: Keras has just reset the metrics.
        if self._running is not None:
            checkpoints.restore_metrics(self.model.step.metrics, self._running)
            self._running = None
        if not self.step:
            return
        # A stop may be requested while the last epoch is saved, or later.
        stop = self.stops.reason(mean_over_workers)
        if stop:
            if self.step != self._retention.newest:
                self._save(None)
            raise Stopped(stop)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step = self.model.step.position
        stop = self.stops.reason(mean_over_workers)
        is_within_epoch = self.step < self.batches.end_of(self.epoch)
        if stop == TIME and not is_within_epoch:
            return  # this epoch is still validated; `on_epoch_begin` stops
        if stop or (is_within_epoch and mean_over_workers(float(self._is_due()))):
            self._save(checkpoints.metric_state(self.model.step.metrics))
            # A stop may be requested while the checkpoint is written.
            stop = stop or self.stops.reason(mean_over_workers)
        if stop:
            raise Stopped(stop)

    def on_test_begin(self, logs: Any = None) -> None:
        self._running = checkpoints.metric_state(self.model.step.metrics)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        stop = self.stops.reason(mean_over_workers)
        # `time_budget` has reserved the time for this validation.
        if stop and stop != TIME:
            # Validation uses the averages: see `UpdateRule`.
            self.model.step.update.swap_ema()
            self._save(self._running)
            raise Stopped(stop)

    def on_test_end(self, logs: Any = None) -> None:
        self._running = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        self.step = self.batches.end_of(epoch)
        # NaN for metrics that are missing in an epoch, because another precision was
        # forced.
        for name in {**self.history, **logs}:
            values = self.history.setdefault(name, [math.nan] * epoch)
            values.append(float(logs.get(name, math.nan)))
        self.seconds.append(round(self.stops.seconds_elapsed, 3))
        self.epoch = epoch + 1
        is_best = self.early_stopping.improved
        if is_best:
            self._best_step = self.step
        # Without patience, the best checkpoint is not restored.
        is_needed = is_best and self.early_stopping.patience is not None
        elapsed = time.monotonic() - self._last_save
        is_cheap = elapsed >= _MIN_SAVE_INTERVAL * self._cost
        if is_needed or self.complete or self._is_due() or is_cheap:
            self._save(None)

    def on_train_end(self, logs: Any = None) -> None:
        if self.model.stop_training and not self.complete:
            self.ended = True
            self._save(None)

    def _is_due(self) -> bool:
        """Whether the options require a checkpoint now."""
        every = self._options.checkpoint_steps
        if every and self.step // every > self._retention.newest // every:
            return True
        elapsed = time.monotonic() - self._last_save
        return elapsed >= 60 * self._options.checkpoint_minutes

    def _save(self, running: list[list[str]] | None) -> None:
        """Saves this step; `running` are the metrics of an unfinished epoch."""
        retention = self._retention.add(self.step, self._best_step)
        state = self._state(running, retention)
        start = time.monotonic()
        try:
            self._checkpoints.save(self.step, state)
        except WRITE_ERRORS as error:
            why = getattr(error, "strerror", None) or reason(error)
            if not self.unsaved:
                text = f"step {self.step:,} was not saved: {why}; training continues"
                say("warning", text)
            self.unsaved = why
            self._unsaved_state = state
        else:
            if self.unsaved:
                say("saved", f"step {self.step:,}: the disk is writable again")
            self.unsaved = ""
            self._retention = retention
            self._prune()
        self._last_save = time.monotonic()
        self._cost = self._last_save - start

    def save_unsaved(self, directory: Path) -> None:
        """Saves the checkpoint that could not be saved in another directory.

        A user can copy it to the directory of the checkpoints.
        """
        if not self.unsaved:
            return
        with contextlib.suppress(*WRITE_ERRORS):
            self._checkpoints.save(self.step, self._unsaved_state, directory)

    def _state(
        self, running: list[list[str]] | None, retention: Retention
    ) -> dict[str, Any]:
        """Returns the state that a checkpoint contains besides the variables."""
        return {
            "history": self.history,
            "seconds": self.seconds,
            "running": running,
            "early_stopping": self.early_stopping.state(),
            "best_step": self._best_step,
            "ended": self.ended,
            "saved": retention.state,
            "elapsed": round(self.stops.seconds_elapsed, 3),
            "order": self._order_checksum(self.step),
        }

    def _order_checksum(self, step: int) -> int:
        """Returns the CRC-32 of the example order in the epoch of the last step."""
        epoch = max(0, step - 1) // self.batches.steps_per_epoch
        return self.batches.order_checksum(epoch)

    def _prune(self) -> None:
        self._checkpoints.keep(self._retention.steps)

    def restore_final_weights(self) -> Decision:
        """Restores the best weights if patience is set; otherwise, keeps the last."""
        last = f"step {self.step}"
        if self.early_stopping.patience is None or not self._best_step:
            why = "the last"
            if "val_loss" in self.history:
                why += "; --train.patience selects the best"
            return Decision("weights", last, why)
        try:
            self._checkpoints.restore(self._best_step)
        except Damaged as error:
            say("warning", f"the best weights cannot be read: {error}")
            why = "the last, because the best cannot be read"
            return Decision("weights", last, why)
        stopping = self.early_stopping
        word = "highest" if stopping.direction > 0 else "lowest"
        why = f"{word} {stopping.monitor}, {stopping.best:.4f}"
        return Decision("weights", f"step {self._best_step}", why)
