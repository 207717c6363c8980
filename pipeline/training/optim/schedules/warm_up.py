"""Learning rate schedules with a linear warm-up: constant, cosine, linear and step
decay.
"""

from typing import Annotated, Any

import keras
from keras.optimizers.schedules import LearningRateSchedule


@keras.saving.register_keras_serializable("pipeline")
class WarmUp(LearningRateSchedule):
    """A linear warm-up, then `decay`; float32, a pure function of the step.

    Args:
        learning_rate: The peak rate.
        steps: Optimizer steps of the whole run.
        warmup: Fraction of the steps over which the rate rises linearly; the last of
            them has the peak rate (Goyal et al. 2017, section 2.2).
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

    def __call__(self, step: Any) -> Any:
        rising = self.warmup * self.steps
        step = keras.ops.cast(step, "float32")
        rate = self.decay(keras.ops.cast(self.learning_rate, "float32"), step)
        return (
            rate * keras.ops.minimum(1.0, (step + 1.0) / rising)
            if rising >= 1
            else rate
        )

    def get_config(self) -> dict[str, Any]:
        own = {
            name: getattr(self, name) for name in ("learning_rate", "steps", "warmup")
        }
        return {**own, **self.options}


def constant(
    learning_rate: float, steps: int, *, warmup: Annotated[float, (0, 1)] = 0.0
) -> LearningRateSchedule:
    """The same rate at every step, after a linear warm-up.

    Args:
        warmup: Fraction of the steps over which the rate first rises linearly to its
            peak.
    """
    return WarmUp(learning_rate, steps, warmup=warmup)


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
        warmup: Fraction of the steps over which the rate first rises linearly to its
            peak.
    """
    return _Annealed(learning_rate, steps, warmup=warmup, final=final, shape="cosine")


def linear(
    learning_rate: float,
    steps: int,
    *,
    final: Annotated[float, (0, 1)] = 0.0,
    warmup: Annotated[float, (0, 1)] = 0.0,
) -> LearningRateSchedule:
    """Linear decay from the rate to `final` times the rate, after a linear warm-up.

    With `warmup=0.25`, it is a one-cycle schedule (Smith, Topin, "Super-convergence",
    2018).

    Args:
        final: Rate at the end, as a fraction of the peak rate.
        warmup: Fraction of the steps over which the rate first rises linearly to its
            peak.
    """
    return _Annealed(learning_rate, steps, warmup=warmup, final=final, shape="linear")


@keras.saving.register_keras_serializable("pipeline")
class _Annealed(WarmUp):
    def decay(self, rate: Any, step: Any) -> Any:
        rising = self.warmup * self.steps
        done = keras.ops.clip((step - rising) / max(self.steps - rising, 1.0), 0.0, 1.0)
        left = 1.0 - done
        if self.options["shape"] == "cosine":
            left = 0.5 * (1.0 + keras.ops.cos(done * 3.141592653589793))
        return rate * (self.options["final"] + (1.0 - self.options["final"]) * left)


def step(
    learning_rate: float,
    steps: int,
    *,
    at: tuple[Annotated[float, (0, 1)], ...] = (0.5, 0.75),
    factor: Annotated[float, (0, 1)] = 0.1,
    warmup: Annotated[float, (0, 1)] = 0.0,
) -> LearningRateSchedule:
    """The rate is multiplied by `factor` at fractions `at` of the run: `at=0.5,0.75` or
    `at=0.5,`.

    He et al., "Deep residual learning", CVPR 2016, section 4.2, for CIFAR-10. The
    fractions are of the whole run including the warm-up, so a milestone does not move
    when the warm-up changes.

    Args:
        at: Fractions of the run at which the rate drops.
        factor: What the rate is multiplied by at each of them.
        warmup: Fraction of the steps over which the rate first rises linearly to its
            peak.
    """
    return _Step(learning_rate, steps, warmup=warmup, at=list(at), factor=factor)


@keras.saving.register_keras_serializable("pipeline")
class _Step(WarmUp):
    def decay(self, rate: Any, step: Any) -> Any:
        for share in self.options["at"]:
            factor = keras.ops.where(
                step >= share * self.steps, self.options["factor"], 1.0
            )
            rate = rate * factor
        return rate
