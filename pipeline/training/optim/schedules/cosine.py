"""Cosine decay of the learning rate."""

from typing import Annotated, Any

import keras
from keras.optimizers.schedules import LearningRateSchedule

from pipeline.training.optim.schedules._warm_up import WarmUp


def cosine(
    learning_rate: float,
    steps: int,
    *,
    final: Annotated[float, (0, 1)] = 0.0,
    warmup: Annotated[float, (0, 1)] = 0.0,
) -> LearningRateSchedule:
    """Cosine decay from the rate to `final` times the rate, after a linear warm-up.

    Loshchilov, Hutter, "SGDR", ICLR 2017, equation 5, without restarts.

    Args:
        final: Rate at the end, as a fraction of the peak rate.
        warmup: Fraction of the steps over which the rate first rises linearly to its peak.
    """
    return _Cosine(learning_rate, steps, warmup=warmup, final=final)


@keras.saving.register_keras_serializable("pipeline")
class _Cosine(WarmUp):
    def decay(self, rate: Any, step: Any) -> Any:
        left = 0.5 * (1.0 + keras.ops.cos(self.share(step) * 3.141592653589793))
        return rate * (self.options["final"] + (1.0 - self.options["final"]) * left)
