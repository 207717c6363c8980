"""A limited time and what is made of it: a reserve for the end, a schedule that ends with it."""

import time
from collections.abc import Callable
from typing import Any

import keras

from pipeline.contracts import Batches
from pipeline.stops import Stops

_AFTER = 5.0  # seconds: evaluations are traced, pictures drawn
_EXPORT = 30.0  # seconds; TensorFlow is imported once more, on a slow disk


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
        self._rest = _AFTER + (_EXPORT if export else 0.0)
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

    The speed is that of this process so far, with all that lies between the calls; the first one,
    which traces, left out.

    Args:
        stops: Holds the limit.
        batches: Of training.
        agreed: The mean of a number over all workers, whose rates must be one.
    """

    def __init__(self, stops: Stops, batches: Batches, agreed: Callable[[float], float]) -> None:
        super().__init__()
        self._stops, self._last, self._agreed = stops, batches.last_step, agreed
        self._start: tuple[float, int] | None = None

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        now, position = time.monotonic(), self.model.step.position
        if self._start is None:
            self._start = now, position
            return
        since, first = self._start
        if position == first:
            return
        left = self._agreed(self._stops.left * (position - first) / max(now - since, 1e-6))
        most = self._last - position
        start, reached, each = self.model.step.update.pace.numpy().tolist()
        step = int(self.model.optimizer.iterations.numpy())  # what the schedule is asked for
        reached += (step - start) * each
        if left >= most and reached == step:  # in time: not a bit is changed
            return
        each = max(0.0, self._last - reached) / max(1.0, min(left, most))
        self.model.step.update.pace.assign([step, reached, each])
