"""A cosine from the highest learning rate to the lowest."""

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
    """Half a cosine from the rate down to the share `final` of it, after a linear warm-up.

    Loshchilov, Hutter, "SGDR", ICLR 2017, equation 5, without restarts.

    Args:
        final: Rate at the last step, as a share of the highest rate.
        warmup: Share of the steps in which the rate rises linearly to its highest value.
    """
    return _Cosine(learning_rate, steps, warmup=warmup, final=final)


@keras.saving.register_keras_serializable("pipeline")
class _Cosine(WarmUp):
    def decay(self, rate: Any, step: Any) -> Any:
        left = 0.5 * (1.0 + keras.ops.cos(self.share(step) * 3.141592653589793))
        return rate * (self.options["final"] + (1.0 - self.options["final"]) * left)
