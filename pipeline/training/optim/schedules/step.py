"""A learning rate that drops at milestones."""

from typing import Annotated, Any

import keras
from keras.optimizers.schedules import LearningRateSchedule

from pipeline.training.optim.schedules._warm_up import WarmUp


def step(
    learning_rate: float,
    steps: int,
    *,
    at: tuple[Annotated[float, (0, 1)], ...] = (0.5, 0.75),
    factor: Annotated[float, (0, 1)] = 0.1,
    warmup: Annotated[float, (0, 1)] = 0.0,
) -> LearningRateSchedule:
    """The rate is multiplied by `factor` at fractions `at` of the run: `at=0.5,0.75` or `at=0.5,`.

    He et al., "Deep residual learning", CVPR 2016, section 4.2, for CIFAR-10. The fractions are of
    the whole run including the warm-up, so a milestone does not move when the warm-up changes.

    Args:
        at: Fractions of the run at which the rate drops.
        factor: What the rate is multiplied by at each of them.
        warmup: Fraction of the steps over which the rate first rises linearly to its peak.
    """
    return _Step(learning_rate, steps, warmup=warmup, at=list(at), factor=factor)


@keras.saving.register_keras_serializable("pipeline")
class _Step(WarmUp):
    def decay(self, rate: Any, step: Any) -> Any:
        for share in self.options["at"]:
            factor = keras.ops.where(step >= share * self.steps, self.options["factor"], 1.0)
            rate = rate * factor
        return rate
