"""Polynomial and linear decay of the learning rate."""

from typing import Annotated, Any

import keras
from keras.optimizers.schedules import LearningRateSchedule

from pipeline.training.optim.schedules._warm_up import WarmUp


def polynomial(
    learning_rate: float,
    steps: int,
    *,
    power: Annotated[float, (0, 10)] = 2.0,
    final: Annotated[float, (0, 1)] = 0.0,
    warmup: Annotated[float, (0, 1)] = 0.0,
) -> LearningRateSchedule:
    """Polynomial decay from the rate to `final` times the rate, after a linear warm-up.

    Power 2: You, Gitman, Ginsburg, "Large batch training of convolutional networks", 2017; 0.9:
    Chen et al., "DeepLab", 2018. Power 1 is `linear`.

    Args:
        power: Exponent of the fraction of the steps that remain.
        final: Rate at the end, as a fraction of the peak rate.
        warmup: Fraction of the steps over which the rate first rises linearly to its peak.
    """
    return _Polynomial(learning_rate, steps, warmup=warmup, power=power, final=final)


def linear(
    learning_rate: float,
    steps: int,
    *,
    final: Annotated[float, (0, 1)] = 0.0,
    warmup: Annotated[float, (0, 1)] = 0.0,
) -> LearningRateSchedule:
    """Linear decay from the rate to `final` times the rate, after a linear warm-up.

    With `warmup=0.25`, it is a one-cycle schedule (Smith, Topin, "Super-convergence", 2018).

    Args:
        final: Rate at the end, as a fraction of the peak rate.
        warmup: Fraction of the steps over which the rate first rises linearly to its peak.
    """
    return _Polynomial(learning_rate, steps, warmup=warmup, power=1.0, final=final)


@keras.saving.register_keras_serializable("pipeline")
class _Polynomial(WarmUp):
    def decay(self, rate: Any, step: Any) -> Any:
        left = 1.0 - self.share(step)
        if self.options["power"] != 1.0:
            left = keras.ops.power(left, self.options["power"])
        return rate * (self.options["final"] + (1.0 - self.options["final"]) * left)
