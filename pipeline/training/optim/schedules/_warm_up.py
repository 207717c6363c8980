"""The base of all schedules: a linear warm-up, and a serializable configuration."""

from typing import Any

import keras
from keras.optimizers.schedules import LearningRateSchedule


@keras.saving.register_keras_serializable("pipeline")
class WarmUp(LearningRateSchedule):
    """A linear warm-up, then `decay`; float32, a pure function of the step.

    Args:
        learning_rate: The peak rate.
        steps: Optimizer steps of the whole run.
        warmup: Fraction of the steps over which the rate rises linearly; the last of them has the
            peak rate (Goyal et al. 2017, section 2.2).
        options: Options of a subclass, for `get_config`.
    """

    def __init__(
        self, learning_rate: float, steps: int, *, warmup: float = 0.0, **options: Any
    ) -> None:
        self.learning_rate, self.steps, self.warmup = learning_rate, steps, warmup
        self.options = options

    def decay(self, rate: Any, step: Any) -> Any:
        """The rate of a step after the warm-up, float32 ()."""
        return rate

    def share(self, step: Any) -> Any:
        """Fraction of the steps after the warm-up that are done, float32 ()."""
        rising = self.warmup * self.steps
        return keras.ops.clip((step - rising) / max(self.steps - rising, 1.0), 0.0, 1.0)

    def __call__(self, step: Any) -> Any:
        rising = self.warmup * self.steps
        step = keras.ops.cast(step, "float32")
        rate = self.decay(keras.ops.cast(self.learning_rate, "float32"), step)
        return rate * keras.ops.minimum(1.0, (step + 1.0) / rising) if rising >= 1 else rate

    def get_config(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("learning_rate", "steps", "warmup")}
        return {**own, **self.options}
