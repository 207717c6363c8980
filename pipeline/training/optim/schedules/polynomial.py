"""A power of the share of the steps that is left."""

from typing import Annotated, Any

import keras

from pipeline.training.optim.schedules._warm_up import Schedule, WarmUp


def polynomial(
    learning_rate: float,
    steps: int,
    *,
    power: Annotated[float, (0, 10)] = 2.0,
    final: Annotated[float, (0, 1)] = 0.0,
    warmup: Annotated[float, (0, 1)] = 0.0,
) -> Schedule:
    """The share of the steps that is left, to a power; from the rate down to `final` of it.

    Power 2: You, Gitman, Ginsburg, "Large batch training of convolutional networks", 2017; 0.9:
    Chen et al., "DeepLab", 2018. Power 1 is `linear`.

    Args:
        power: Exponent of the share of the steps that is left.
        final: Rate at the last step, as a share of the highest rate.
        warmup: Share of the steps in which the rate rises linearly to its highest value.
    """
    return _Polynomial(learning_rate, steps, warmup=warmup, power=power, final=final)


@keras.saving.register_keras_serializable("pipeline")
class _Polynomial(WarmUp):
    """The share of the steps that is left, to a power."""

    def decay(self, rate: Any, step: Any) -> Any:
        left = keras.ops.power(1.0 - self.share(step), self.options["power"])
        return rate * (self.options["final"] + (1.0 - self.options["final"]) * left)
