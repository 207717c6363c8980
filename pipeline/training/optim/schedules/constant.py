"""A constant learning rate after the warm-up."""

from typing import Annotated

import keras

from pipeline.training.optim.schedules._warm_up import Schedule, WarmUp


def constant(
    learning_rate: float, steps: int, *, warmup: Annotated[float, (0, 1)] = 0.0
) -> Schedule:
    """The same rate at every step, after a linear rise over the share `warmup` of the steps.

    Args:
        warmup: Share of the steps in which the rate rises linearly to its highest value.
    """
    return _Constant(learning_rate, steps, warmup=warmup)


@keras.saving.register_keras_serializable("pipeline")
class _Constant(WarmUp):
    """The same rate at every step."""
