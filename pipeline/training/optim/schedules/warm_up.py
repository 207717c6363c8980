"""Learning rate schedules with a linear warm-up: constant, cosine, linear, step."""

from typing import Annotated, Any

import keras
from keras.optimizers.schedules import LearningRateSchedule

from pipeline.config.registry import register


@keras.saving.register_keras_serializable("pipeline")
class WarmUp(LearningRateSchedule):
    """A linear warm-up, then `decay`; a pure function of the step, float32.

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
        self.learning_rate = learning_rate
        self.steps = steps
        self.warmup = warmup
        self.options = options

    def decay(self, rate: Any, step: Any) -> Any:
        """Returns the rate of a step after the warm-up, float32 ()."""
        return rate

    def __call__(self, step: Any) -> Any:
        rising = self.warmup * self.steps
        step = keras.ops.cast(step, "float32")
        rate = self.decay(keras.ops.cast(self.learning_rate, "float32"), step)
        if rising < 1:
            return rate
        return rate * keras.ops.minimum(1.0, (step + 1.0) / rising)

    def get_config(self) -> dict[str, Any]:
        return {
            "learning_rate": self.learning_rate,
            "steps": self.steps,
            "warmup": self.warmup,
            **self.options,
        }


@register
def constant(
    learning_rate: float, steps: int, *, warmup: Annotated[float, (0, 1)] = 0.0
) -> LearningRateSchedule:
    """The same rate at every step, after a linear warm-up.

    Args:
        warmup: Fraction of the steps over which the rate first rises linearly to its
            peak.
    """
    return WarmUp(learning_rate, steps, warmup=warmup)


@register
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


@register
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
        remaining = 1.0 - done
        if self.options["shape"] == "cosine":
            remaining = 0.5 * (1.0 + keras.ops.cos(done * 3.141592653589793))
        final = self.options["final"]
        return rate * (final + (1.0 - final) * remaining)


@register
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
        for fraction in self.options["at"]:
            is_after = step >= fraction * self.steps
            rate = rate * keras.ops.where(is_after, self.options["factor"], 1.0)
        return rate
