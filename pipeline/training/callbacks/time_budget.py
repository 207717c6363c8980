"""Reserves time for testing and export, and ends the schedule in time."""

import time
from typing import Any

import keras

from pipeline.training.callback_context import CallbackContext
from pipeline.training.distributed import mean_over_workers

# The largest number of seconds that is reserved for the end of a run, without and with
# an export: tracing the evaluations, drawing plots, writing the export, verifying it in
# another process.
_MAX_SECONDS = (5.0, 35.0)
# The same as fractions of the time before training (imports, data, the model), on any
# machine: `digits` takes 8 to 10 s before training, and 4 s, or 6 to 9 s with an
# export, after it.
_FRACTIONS = (0.5, 1.25)


def time_budget(context: CallbackContext) -> keras.callbacks.Callback | None:
    """Reserves time for testing and export within `runtime.time_limit`."""
    return None if context.time_limit is None else TimeBudget(context)


class TimeBudget(keras.callbacks.Callback):
    """Reserves time for testing and export, and ends the schedule in time.

    While there is not enough time for all steps, the position in the schedule follows
    the fraction of the training time that has passed. Between two calls, it advances at
    the average speed of this process, without its first call, which traces.
    """

    def __init__(self, context: CallbackContext) -> None:
        super().__init__()
        self._stops = context.stops
        self._evaluated = context.evaluated
        self._batch_size = context.batches.batch_size
        self._last_step = context.batches.last_step
        seconds = 1.0 + self._stops.preparation * _FRACTIONS[context.exports]
        self._rest = min(_MAX_SECONDS[context.exports], seconds)
        """Seconds for everything after training except the evaluations."""
        self._stops.reserve = self._rest
        self._call = (0.0, 0, 0)
        """Time, step and number of traces at the start of the call."""
        self._start: tuple[float, int] | None = None
        self._origin = (0.0, 0.0)
        """The last time at which there was enough time, and the schedule's position."""

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
        """Reserves time for evaluating at the speed of the last call without traces."""
        start, position, traces = self._call
        examples = (self.model.step.position - position) * self._batch_size
        if examples and traces == self.model.step.traces:
            # A forward pass takes a third of a step; half is conservative.
            seconds_per_example = (time.monotonic() - start) / examples / 2
            evaluation = self._evaluated * seconds_per_example
            self._stops.reserve = self._rest + evaluation

    def on_train_begin(self, logs: Any = None) -> None:
        """Moves the schedule of a resumed run back to fit its new, longer time limit.

        It had reached its end with the earlier limit, and the run would learn nothing
        further.
        """
        step, reached = self._positions()
        if self._start is not None or not step:
            return
        elapsed = mean_over_workers(self._stops.seconds_elapsed)
        left = max(0.0, self._seconds_left())
        position = self._last_step * elapsed / max(elapsed + left, 1e-6)
        reached = max(step, min(reached, position))
        self._continue_from(step, reached, self._last_step - step)

    def _pace(self) -> None:
        """Moves the schedule if there is not enough time for all steps."""
        now = time.monotonic()
        position = self.model.step.position
        step, reached = self._positions()
        if self._start is None:
            self._start = (now, position)
            self._origin = (now, reached)
            return
        start, first = self._start
        if position == first:
            return
        seconds = self._seconds_left()
        steps_left = seconds * (position - first) / max(now - start, 1e-6)
        steps_left = mean_over_workers(steps_left)
        # If there is enough time, the schedule does not change, bit for bit.
        if steps_left >= self._last_step - position and reached == step:
            self._origin = (now, reached)
            return
        start, origin = self._origin
        elapsed = now - start
        fraction = mean_over_workers(elapsed / max(elapsed + max(seconds, 0.0), 1e-6))
        reached = origin + (self._last_step - origin) * fraction
        self._continue_from(step, reached, steps_left)

    def _seconds_left(self) -> float:
        """Returns the mean over all workers, whose learning rates must be equal."""
        return mean_over_workers(self._stops.seconds_left or 0.0)

    def _positions(self) -> tuple[int, float]:
        """Returns the optimizer's step, and the position in the schedule at it."""
        start, reached, increment = self.model.step.update.pace.numpy().tolist()
        step = int(self.model.optimizer.iterations.numpy())
        return step, min(reached + (step - start) * increment, self._last_step)

    def _continue_from(self, step: int, reached: float, left: float) -> None:
        """Sets the schedule to `reached` at `step`, and its end after `left` steps."""
        steps = max(1.0, min(left, self._last_step - step))
        increment = max(0.0, self._last_step - reached) / steps
        self.model.step.update.pace.assign([step, reached, increment])
