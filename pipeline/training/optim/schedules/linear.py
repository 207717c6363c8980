"""A straight line from the highest learning rate to the lowest."""

from typing import Annotated, Any

import keras

from pipeline.training.optim.schedules._warm_up import Schedule, WarmUp


def linear(
    learning_rate: float,
    steps: int,
    *,
    final: Annotated[float, (0, 1)] = 0.0,
    warmup: Annotated[float, (0, 1)] = 0.0,
) -> Schedule:
    """A straight line from the rate down to the share `final` of it, after a linear rise.

    With `warmup=0.25` it is the triangle of one cycle (Smith, Topin, "Super-convergence", 2018).

    Args:
        final: Rate at the last step, as a share of the highest rate.
        warmup: Share of the steps in which the rate rises linearly to its highest value.
    """
    return _Linear(learning_rate, steps, warmup=warmup, final=final)


@keras.saving.register_keras_serializable("pipeline")
class _Linear(WarmUp):
    """A straight line from the rate down to the share `final` of it."""

    def decay(self, rate: Any, step: Any) -> Any:
        left = 1.0 - self.share(step)
        return rate * (self.options["final"] + (1.0 - self.options["final"]) * left)
