"""The learning rate as a function of the step, by name.

Each is `schedule(learning_rate, steps, *, options)`: the highest rate, and the optimizer steps of
the whole run.
"""

from typing import Annotated

import keras

Schedule = keras.optimizers.schedules.LearningRateSchedule


def constant(
    learning_rate: float, steps: int, *, warmup: Annotated[float, (0, 1)] = 0.0
) -> Schedule:
    """The same rate at every step, after a linear rise over the share `warmup` of the steps."""
    return _Warmed(learning_rate, steps, warmup, falls=False)


def cosine(learning_rate: float, steps: int, *, warmup: Annotated[float, (0, 1)] = 0.0) -> Schedule:
    """Half a cosine from the rate down to 0 at the last step, after a linear rise.

    Loshchilov, Hutter, "SGDR", ICLR 2017, equation 5, without restarts.
    """
    return _Warmed(learning_rate, steps, warmup, falls=True)


@keras.saving.register_keras_serializable("pipeline")
class _Warmed(Schedule):
    def __init__(self, learning_rate: float, steps: int, warmup: float, falls: bool) -> None:
        self.learning_rate, self.steps = learning_rate, steps
        self.warmup, self.falls = warmup, falls

    def __call__(self, step: keras.KerasTensor) -> keras.KerasTensor:
        rising = self.warmup * self.steps
        step = keras.ops.cast(step, "float32")
        rate = keras.ops.cast(self.learning_rate, "float32")
        if self.falls:
            share = keras.ops.clip((step - rising) / max(self.steps - rising, 1.0), 0.0, 1.0)
            rate = rate * 0.5 * (1.0 + keras.ops.cos(share * 3.141592653589793))
        return rate * keras.ops.minimum(1.0, (step + 1.0) / rising) if rising >= 1 else rate

    def get_config(self) -> dict:
        names = ("learning_rate", "steps", "warmup", "falls")
        return {name: getattr(self, name) for name in names}
