"""When a run is saved, what is kept, where it is taken up again, and when it has learned enough."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from pipeline.config import config
from pipeline.contracts import Batches, Decision
from pipeline.runtime.signals import Stopped, Stops
from pipeline.training import metric_state
from pipeline.training.checkpoints import WRITE_ERRORS, Checkpoints, Damaged
from pipeline.utils.errors import Diverged, UsageError, reason

# At the end of an epoch nothing is saved before training has taken so many times as long as the
# last save: saving then costs less than 2 % of the time, however short the epochs. Not 50 times:
# with the save at its end, which does not wait, a training of 14 s came to 2.1 %.
_PAYS = 60


class CheckpointCallback(keras.callbacks.Callback):
    """Saves at the end of epochs and within them; ends training when it is asked to, or patience
    is over.

    Kept are the two newest checkpoints and the best: the one with the lowest `val_loss`; without a
    validation split that is the last. A checkpoint that cannot be written, as the disk is full, is
    done without: training goes on, and the next one is tried.

    Args:
        checkpoints: Where to.
        batches: Training batches; their steps number the checkpoints.
        options: `patience` and `checkpoint_*` are used.
        stops: Asked after every call whether it was the last.
        agreed: The mean of a number over all workers: they save after the same call.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        batches: Batches,
        options: config.Train,
        stops: Stops | None = None,
        agreed: Callable[[float], float] = float,
    ) -> None:
        super().__init__()
        self._checkpoints = checkpoints
        self._batches = batches
        self._options = options
        self.stops = stops or Stops()
        self._agreed = agreed
        self.step = 0
        self.epoch = 0
        """Epochs that are finished."""
        self.stopped = False
        """Whether patience is over."""
        self.ended = False
        """Whether another callback has set `model.stop_training`."""
        self.notes: list[str] = []
        """What a person should know of the checkpoints that were found."""
        self.history: dict[str, list[float]] = {}
        self.seconds: list[float] = []
        """Of the run at the end of each epoch."""
        self._best = math.inf
        self._best_step = 0
        self._waited = 0
        self._saved: dict[int, int] = {}
        """The best step by then of each of the two newest checkpoints."""
        self._last_save, self._cost = time.monotonic(), 0.0
        self.unsaved = ""
        """Why the last save could not be written; empty if it was."""
        self._unsaved_state: dict[str, Any] = {}
        self._running: list[list[str]] | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing is left to train."""
        if self.stopped or self.ended or self.epoch >= self._batches.epochs:
            return True
        return self.step > self._batches.last_step  # `--force` has shortened the run

    @property
    def last_step(self) -> int:
        """Of the run, if nothing ends it before."""
        return self._batches.last_step

    def resume(self) -> Batches:
        """Takes the run up at its newest whole checkpoint; returns the batches that are left.

        Raises NoCheckpoint if all are damaged.
        """
        found = self._checkpoints.restore_newest(self._take)
        if found:
            self.step, self.notes = found
            self._prune()  # in case the process ended before it could
        return dataclasses.replace(
            self._batches, first_step=self.step, first_epoch=min(self.epoch, self._batches.epochs)
        )

    def _take(self, step: int, state: dict[str, Any]) -> None:
        """What was saved with a step; raises anything where it is not as `_state` makes it."""
        if state.keys() != self._state(None, []).keys():
            raise UsageError(
                f"step {step} was saved by another version of pipeline; go on with that, "
                "or give a new --run-directory"
            )
        self._waited, patience = int(state["waited"]), self._options.patience
        self.stopped = patience is not None and self._waited >= patience
        self.ended = state["ended"]
        if not isinstance(self.ended, bool):
            raise TypeError("neither true nor false")
        self._best_step = int(state["best_step"])
        self._best = math.inf if state["best"] is None else float(state["best"])
        self.seconds = [float(value) for value in state["seconds"]]
        self.epoch = len(self.seconds)
        metric_state.require_history(state["history"], self.epoch)
        self.history = {
            name: [math.nan if value is None else float(value) for value in values]
            for name, values in state["history"].items()
        }
        self._running = state["running"]
        metric_state.require_plain(self._running)
        self._saved = {int(step): int(best) for step, best in state["saved"]}
        if step not in self._saved:
            raise ValueError("it does not count itself")
        elapsed = float(state["elapsed"])
        if not all(0 <= value < math.inf for value in (*self.seconds, elapsed)):
            raise ValueError("no time")
        self.stops.resume(elapsed)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._running is not None:  # saved within this epoch; Keras has just reset them
            try:
                metric_state.restore(self.model.step.metrics, self._running)
            except (ValueError, IndexError):
                raise UsageError(
                    f"step {self.step} was saved within an epoch by a task with other metrics; "
                    "bring that back, or give a new --run-directory"
                ) from None
            self._running = None
        # Asked after the last epoch was saved, or meanwhile.
        if self.step and (asked := self.stops.reason(self._agreed)):
            if self.step not in self._saved:
                self._save(None)
            raise Stopped(asked)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.step = self.model.step.position
        asked = self.stops.reason(self._agreed)
        within = self.step < self._batches.end_of(self.epoch)
        if asked or (within and self._agreed(float(self._due()))):
            self._save(metric_state.serialize(self.model.step.metrics))
            asked = asked or self.stops.reason(self._agreed)  # while it was written
        if asked:
            raise Stopped(asked)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._running = metric_state.serialize(self.model.step.metrics)

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if asked := self.stops.reason(self._agreed):
            self.model.step.update.swap_ema()  # the averages are validated: see `Update`
            self._save(self._running)
            raise Stopped(asked)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._running = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.step = self._batches.end_of(epoch)
        if not math.isfinite(logs["loss"]):
            raise Diverged(
                f"training diverged: {logs['loss']} is the loss of epoch {epoch + 1}; "
                "lower --train.learning-rate. Nothing of this epoch was saved"
            )
        # What was not measured in an epoch, as another precision was forced, is not a number.
        for name in {**self.history, **logs}:
            values = self.history.setdefault(name, [math.nan] * epoch)
            values.append(float(logs.get(name, math.nan)))
        self.seconds.append(round(self.stops.elapsed, 3))
        self.epoch = epoch + 1
        # A loss that is not a number is never the best.
        better = logs["val_loss"] < self._best if "val_loss" in logs else True
        self._waited = 0 if better else self._waited + 1
        if better:
            self._best, self._best_step = float(logs.get("val_loss", 0.0)), self.step
        patience = self._options.patience
        if patience is not None and self._waited >= patience:
            self.stopped = self.model.stop_training = True
        wanted = better and patience is not None
        spent = time.monotonic() - self._last_save
        if wanted or self.complete or self._due() or spent >= _PAYS * self._cost:
            self._save(None)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self.model.stop_training and not self.complete:
            self.ended = True
            self._save(None)

    def _due(self) -> bool:
        """Whether the options ask for a checkpoint now."""
        every, last = self._options.checkpoint_steps, max(self._saved, default=0)
        if every and self.step // every > last // every:
            return True
        return time.monotonic() - self._last_save >= 60 * self._options.checkpoint_minutes

    def _save(self, running: list[list[str]] | None) -> None:
        """`running` are the metrics of an epoch that is not finished."""
        others = [pair for pair in self._saved.items() if pair[0] != self.step]
        saved = [*others[-1:], (self.step, self._best_step)]
        start, state = time.monotonic(), self._state(running, saved)
        try:
            self._checkpoints.save(self.step, state)
        except WRITE_ERRORS as error:
            why = getattr(error, "strerror", None) or reason(error)
            if not self.unsaved:
                print(f"warning    step {self.step:,} could not be saved: {why}; training goes on")
            self.unsaved, self._unsaved_state = why, state
        else:
            if self.unsaved:
                print(f"saved      step {self.step:,}: the disk can be written again", flush=True)
            self.unsaved = ""
            self._saved = dict(saved)
            self._prune()
        self._last_save = time.monotonic()
        self._cost = self._last_save - start

    def save_unsaved(self, folder: Path) -> None:
        """After training: writes what the last save could not write to another folder, if it can.

        Copied to the folder of the checkpoints, it is one of them.
        """
        if self.unsaved:
            with contextlib.suppress(*WRITE_ERRORS):
                self._checkpoints.at(folder).save(self.step, self._unsaved_state)

    def _state(
        self, running: list[list[str]] | None, saved: list[tuple[int, int]]
    ) -> dict[str, Any]:
        """What a checkpoint holds beside the variables: plain JSON."""
        return {
            "history": self.history,
            "seconds": self.seconds,
            "running": running,
            "best": self._best,
            "best_step": self._best_step,
            "waited": self._waited,
            "ended": self.ended,
            "saved": saved,
            "elapsed": round(self.stops.elapsed, 3),
        }

    def _prune(self) -> None:
        self._checkpoints.keep({*self._saved, *self._saved.values()})

    def choose(self) -> Decision:
        """Leaves the weights to be used in the model: the best under patience, else the last."""
        if self._options.patience is None or not self._best_step:
            return Decision(
                "weights", f"step {self.step}", "the last; --train.patience takes the best"
            )
        try:
            self._checkpoints.restore(self._best_step)
        except Damaged as error:
            why = f"the last, as the best cannot be read: {error}"
            return Decision("weights", f"step {self.step}", why)
        return Decision("weights", f"step {self._best_step}", f"lowest val_loss, {self._best:.4f}")
