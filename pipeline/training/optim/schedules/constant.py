"""A constant learning rate after the warm-up."""

from typing import Annotated

from keras.optimizers.schedules import LearningRateSchedule

from pipeline.training.optim.schedules._warm_up import WarmUp


def constant(
    learning_rate: float, steps: int, *, warmup: Annotated[float, (0, 1)] = 0.0
) -> LearningRateSchedule:
    """The same rate at every step, after a linear warm-up.

    Args:
        warmup: Fraction of the steps over which the rate first rises linearly to its peak.
    """
    return WarmUp(learning_rate, steps, warmup=warmup)
