"""A limited time and what is made of it: a reserve for the end, a schedule that ends with it."""

import time
from collections.abc import Callable
from typing import Any

import keras

from pipeline.contracts import Batches
from pipeline.runtime.signals import Stops
from pipeline.training.callback_context import CallbackContext

# Seconds for what comes after training, without an export and with one, at most: evaluations are
# traced, pictures drawn; the export is written, and proved in another process.
_MOST = (5.0, 35.0)
# The same as shares of what came before it (imports, data, the model), on whatever machine this is:
# `digits` takes 8 to 10 s to begin, and 4 or 6 to 9 s to end.
_SHARES = (0.5, 1.25)


def reserve(context: CallbackContext) -> keras.callbacks.Callback:
    """Reserves time for test and export within `runtime.time_limit`."""
    return Reserve(context.stops, context.batches, context.evaluated, context.exports)


def pace(context: CallbackContext) -> keras.callbacks.Callback | None:
    """Ends the learning rate schedule when the time of `runtime.time_limit` ends."""
    if context.time_limit is None:
        return None
    return Pace(context.stops, context.batches, context.mean)


class Reserve(keras.callbacks.Callback):
    """Keeps time for what comes after training, where the run has a limit.

    Args:
        stops: Holds the limit.
        batches: Of training.
        judged: Examples that are evaluated at the end.
        export: Whether an export is written and proved in a process of its own.
    """

    def __init__(self, stops: Stops, batches: Batches, judged: int, export: bool) -> None:
        super().__init__()
        self._stops, self._judged, self._batch_size = stops, judged, batches.batch_size
        self._rest = min(_MOST[export], 1.0 + stops.preparation * _SHARES[export])
        stops.reserve = self._rest
        self._begun = (0.0, 0, 0)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._begun = (time.monotonic(), self.model.step.position, self.model.step.traces)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        start, position, traces = self._begun
        examples = (self.model.step.position - position) * self._batch_size
        if examples and traces == self.model.step.traces:
            # A forward pass takes a third of a step; half is careful.
            each = (time.monotonic() - start) / examples / 2
            self._stops.reserve = self._rest + self._judged * each


class Pace(keras.callbacks.Callback):
    """Lets the learning rate's schedule come to its end when the time does, if that is earlier.

    Where time is short the schedule stands where the time of training stands, whatever the speed
    was thought to be before; between two calls it goes on at the speed of this process so far, with
    all that lies between the calls; the first one, which traces, left out.

    Args:
        stops: Holds the limit.
        batches: Of training.
        agreed: The mean of a number over all workers, whose rates must be one.
    """

    def __init__(self, stops: Stops, batches: Batches, agreed: Callable[[float], float]) -> None:
        super().__init__()
        self._stops, self._last, self._agreed = stops, batches.last_step, agreed
        self._start: tuple[float, int] | None = None
        self._origin = (0.0, 0.0)
        """When time was last long enough, and where the schedule then stood."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """A resumed run that is now given more time takes its schedule up where the time stands.

        Its end had come with the former limit; from there nothing would be learned any more.
        """
        step, reached = self._stands()
        if self._start is not None or not step:
            return
        elapsed, left = self._agreed(self._stops.elapsed), max(0.0, self._agreed(self._stops.left))
        reached = max(step, min(reached, self._last * elapsed / max(elapsed + left, 1e-6)))
        self._go_on(step, reached, self._last - step)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        now, position = time.monotonic(), self.model.step.position
        step, reached = self._stands()
        if self._start is None:
            self._start, self._origin = (now, position), (now, reached)
            return
        since, first = self._start
        if position == first:
            return
        seconds = self._agreed(self._stops.left)
        left = self._agreed(seconds * (position - first) / max(now - since, 1e-6))
        if left >= self._last - position and reached == step:
            self._origin = now, reached  # in time: not a bit is changed
            return
        since, origin = self._origin
        share = self._agreed((now - since) / max(now - since + max(seconds, 0.0), 1e-6))
        self._go_on(step, origin + (self._last - origin) * share, left)

    def _stands(self) -> tuple[int, float]:
        """What the schedule is asked for, and where it then stands."""
        start, reached, each = self.model.step.update.pace.numpy().tolist()
        step = int(self.model.optimizer.iterations.numpy())
        return step, min(reached + (step - start) * each, self._last)

    def _go_on(self, step: int, reached: float, left: float) -> None:
        """From `step`, with the schedule at `reached`, to its end in `left` more steps."""
        most = self._last - step
        each = max(0.0, self._last - reached) / max(1.0, min(left, most))
        self.model.step.update.pace.assign([step, reached, each])
