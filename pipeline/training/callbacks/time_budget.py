"""The time limit: reserves time for testing and export, and ends the
schedule in time.
"""

import time
from typing import Any

import keras

from pipeline.training.callback_context import CallbackContext
from pipeline.training.distributed import agreed

# At most this many seconds are reserved for what follows training, without and with an
# export: tracing the evaluations, drawing plots, writing the export, verifying it in
# another process.
_MOST = (5.0, 35.0)
# The same as fractions of the time before training (imports, data, the model), on any
# machine: `digits` takes 8 to 10 s before training, and 4 s, or 6 to 9 s with an
# export, after it.
_SHARES = (0.5, 1.25)


def time_budget(context: CallbackContext) -> keras.callbacks.Callback | None:
    """Reserves time for testing and export within `runtime.time_limit`; ends the
    schedule then.
    """
    return None if context.time_limit is None else TimeBudget(context)


class TimeBudget(keras.callbacks.Callback):
    """Reserves time for what follows training, and ends the learning rate schedule in
    time.

    While there is not enough time for all steps, the position in the schedule follows
    the fraction of the training time that has passed. Between two calls, it advances at
    the average speed of this process, which includes everything but the first call,
    which traces.
    """

    def __init__(self, context: CallbackContext) -> None:
        super().__init__()
        self._stops, self._evaluated = context.stops, context.evaluated
        self._batch_size, self._last = (
            context.batches.batch_size,
            context.batches.last_step,
        )
        share = self._stops.preparation * _SHARES[context.exports]
        self._rest = min(_MOST[context.exports], 1.0 + share)
        self._stops.reserve = self._rest
        self._call = (0.0, 0, 0)
        self._start: tuple[float, int] | None = None
        self._origin = (0.0, 0.0)
        """The last time at which there was enough time, and the position in the
        schedule then.
        """

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._call = (
            time.monotonic(),
            self.model.step.position,
            self.model.step.traces,
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._reserve()
        self._pace()

    def _reserve(self) -> None:
        """Reserves time for evaluating as fast as the last call, unless that traced."""
        start, position, traces = self._call
        examples = (self.model.step.position - position) * self._batch_size
        if examples and traces == self.model.step.traces:
            # A forward pass takes a third of a step; half is conservative.
            each = (time.monotonic() - start) / examples / 2
            self._stops.reserve = self._rest + self._evaluated * each

    def on_train_begin(self, logs: Any = None) -> None:
        """Moves the schedule of a resumed run back to where its new, longer time limit
        puts it.

        It had reached its end with the earlier limit, where the run would learn nothing
        more.
        """
        step, reached = self._positions()
        if self._start is not None or not step:
            return
        elapsed = agreed(self._stops.seconds_elapsed)
        left = max(0.0, self._seconds_left())
        reached = max(
            step, min(reached, self._last * elapsed / max(elapsed + left, 1e-6))
        )
        self._continue_from(step, reached, self._last - step)

    def _pace(self) -> None:
        """Moves the schedule if there is not enough time for all steps."""
        now, position = time.monotonic(), self.model.step.position
        step, reached = self._positions()
        if self._start is None:
            self._start, self._origin = (now, position), (now, reached)
            return
        since, first = self._start
        if position == first:
            return
        seconds = self._seconds_left()
        left = agreed(seconds * (position - first) / max(now - since, 1e-6))
        if left >= self._last - position and reached == step:
            self._origin = (
                now,
                reached,
            )  # there is enough time: nothing changes, bit for bit
            return
        since, origin = self._origin
        share = agreed((now - since) / max(now - since + max(seconds, 0.0), 1e-6))
        self._continue_from(step, origin + (self._last - origin) * share, left)

    def _seconds_left(self) -> float:
        """Equal on all workers, as their rates must be."""
        return agreed(self._stops.seconds_left or 0.0)

    def _positions(self) -> tuple[int, float]:
        """The optimizer's step, and the position in the schedule at that step."""
        start, reached, each = self.model.step.update.pace.numpy().tolist()
        step = int(self.model.optimizer.iterations.numpy())
        return step, min(reached + (step - start) * each, self._last)

    def _continue_from(self, step: int, reached: float, left: float) -> None:
        """Sets the schedule to `reached` at `step`, and to its end after `left` more
        steps.
        """
        most = self._last - step
        each = max(0.0, self._last - reached) / max(1.0, min(left, most))
        self.model.step.update.pace.assign([step, reached, each])
