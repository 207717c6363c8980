"""Linear decay of the learning rate."""

from typing import Annotated, Any

import keras
from keras.optimizers.schedules import LearningRateSchedule

from pipeline.training.optim.schedules._warm_up import WarmUp


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
    return _Linear(learning_rate, steps, warmup=warmup, final=final)


@keras.saving.register_keras_serializable("pipeline")
class _Linear(WarmUp):
    def decay(self, rate: Any, step: Any) -> Any:
        left = 1.0 - self.share(step)
        return rate * (self.options["final"] + (1.0 - self.options["final"]) * left)
