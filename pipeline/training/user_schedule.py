"""Adapts users' learning rate schedules: Keras schedules and their classes."""

import inspect
from collections.abc import Callable
from typing import Any

from keras.optimizers.schedules import LearningRateSchedule

from pipeline.utils.errors import UsageError


def adapt(schedule: Any) -> Callable[..., LearningRateSchedule]:
    """Returns a registered schedule for a Keras schedule, its class, or a function.

    A function of rate and steps is already a registered schedule.
    """
    if inspect.isfunction(schedule):
        return schedule
    if not inspect.isclass(schedule):
        return lambda learning_rate, steps: from_object(schedule)

    def build_schedule(
        learning_rate: float, steps: int, **options: Any
    ) -> LearningRateSchedule:
        first = next(iter(inspect.signature(schedule).parameters))
        if not first.endswith("learning_rate"):
            return schedule(**options)
        return schedule(**{first: learning_rate}, **options)

    return build_schedule


def from_object(schedule: Any) -> LearningRateSchedule:
    """Returns the schedule itself, a function of the step."""
    if not isinstance(schedule, LearningRateSchedule):
        raise UsageError(
            "a schedule must be a name or a Keras schedule; got"
            f" {type(schedule).__name__}"
        )
    return schedule
