"""Learning rate schedules that users hand over: Keras schedules and their classes."""

import inspect
from collections.abc import Callable
from typing import Any

from keras.optimizers.schedules import LearningRateSchedule

from pipeline.utils.errors import UsageError


def adapt(found: Any) -> Callable[..., LearningRateSchedule]:
    """A registered schedule for a Keras schedule, its class, or a function of rate and
    steps.
    """
    if inspect.isclass(found):
        first = next(iter(inspect.signature(found).parameters))
        return lambda learning_rate, steps, **options: found(
            **({first: learning_rate} if first.endswith("learning_rate") else {}),
            **options,
        )
    if inspect.isfunction(found):
        return found
    return lambda learning_rate, steps: from_object(found)


def from_object(schedule: Any) -> LearningRateSchedule:
    """The schedule itself, a function of the step."""
    if not isinstance(schedule, LearningRateSchedule):
        raise UsageError(
            "a schedule must be a name or a Keras schedule; got"
            f" {type(schedule).__name__}"
        )
    return schedule
