"""Reserves time for testing and export, and ends the schedule in time."""

import math
import time
from typing import Any

import keras

from pipeline.config.registry import register
from pipeline.training.callback_context import CallbackContext
from pipeline.training.distributed import mean_over_workers
from pipeline.utils import progress_bar
from pipeline.utils.console import pluralize, say
from pipeline.utils.errors import UsageError

# Testing, plotting, exporting and verifying in another process take about this many
# times as long as starting, and as building and tracing the model, without and with an
# export (`digits`, `digits_generation`, `photos` and `boxes` on two cores, 2026-11-27;
# evaluations are added).
_STARTING = (0.5, 2.2)
_TRACING = (1.0, 1.5)
# Seconds in which the process that verifies the export imports TensorFlow. In a
# notebook, where it is imported already, `starting` is shorter.
_MIN_START = 5.0
_MIN_TRAINING = 10.0  # seconds, in the advice for a limit that is too short


@register
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
        self._steps_per_epoch = context.batches.steps_per_epoch
        self._limit = context.time_limit
        self._is_chief = context.is_chief
        self._exports = context.exports
        self._rest = 0.0
        """Seconds for everything after training except the evaluations."""
        self._has_called = False
        self._is_announced = False
        self._call = (0.0, 0, 0)
        """Time, step and number of traces at the start of the call."""
        self._start: tuple[float, int] | None = None
        self._origin = (0.0, 0.0)
        """The last time at which there was enough time, and the schedule's position."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        now, position = time.monotonic(), self.model.step.position
        self._call = (now, position, self.model.step.traces)
        if self._start is None and self._has_called:
            # After the first call, which traces, and its validation, if it is an epoch.
            self._start = (now, position)
            self._origin = (now, self._positions()[1])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._has_called = True
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
        """Reserves time for the end of the run, and moves the schedule of a resumed run
        back to fit its new, longer time limit.

        It had reached its end with the earlier limit, and the run would learn nothing
        further.

        Raises UsageError if nothing of the time limit is left to train a new run.
        """
        if self._start is not None:
            return
        seconds = progress_bar.stage_seconds(self._stops.start)
        starting = max(seconds["starting"], _MIN_START)
        model = seconds.get("building", 0.0) + seconds.get("tracing", 0.0)
        self._rest = _STARTING[self._exports] * starting
        self._rest += _TRACING[self._exports] * model
        self._stops.reserve = self._rest
        step, reached = self._positions()
        if not step:
            self._require_time()
            return
        elapsed = mean_over_workers(self._stops.seconds_elapsed)
        left = max(0.0, self._seconds_left())
        position = self._last_step * elapsed / max(elapsed + left, 1e-6)
        reached = max(step, min(reached, position))
        self._continue_from(step, reached, self._last_step - step)

    def _require_time(self) -> None:
        if self._seconds_left() > 0:
            return
        elapsed = mean_over_workers(self._stops.seconds_elapsed)
        least = elapsed + self._rest + _MIN_TRAINING
        raise UsageError(
            f"--runtime.time-limit {self._limit} leaves no time to train: reading the"
            f" data and building the model took {elapsed:.0f} s, and testing and"
            f" exporting take about {self._rest:.0f} s; set at least"
            f" {10 * math.ceil(least / 10)}s"
        )

    def _announce(self, steps: float) -> None:
        """Says, once, how many epochs fit."""
        if self._is_announced or not self._is_chief:
            return
        self._is_announced = True
        epochs = steps / self._steps_per_epoch
        planned = pluralize(math.ceil(self._last_step / self._steps_per_epoch), "epoch")
        say(
            "plan",
            f"about {epochs:.1f} of {planned} fit into --runtime.time-limit"
            f" {self._limit}; the learning rate and its warm-up follow the time",
        )

    def _pace(self) -> None:
        """Moves the schedule if there is not enough time for all steps."""
        now = time.monotonic()
        position = self.model.step.position
        step, reached = self._positions()
        if self._start is None:
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
        self._announce(position + steps_left)
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
