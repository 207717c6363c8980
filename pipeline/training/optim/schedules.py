"""The learning rate as a function of the step, by name.

Each is `schedule(learning_rate, steps, *, options)`: the highest rate, and the optimizer steps of
the whole run. `warmup` is the share of the steps in which the rate rises linearly, reaching the
highest in its last step (Goyal et al. 2017, section 2.2); a fall takes the steps after it, and ends
after the last step of the run.
"""

import itertools
from typing import Annotated, Any

import keras

from pipeline.utils.errors import UsageError

Schedule = keras.optimizers.schedules.LearningRateSchedule


def constant(
    learning_rate: float, steps: int, *, warmup: Annotated[float, (0, 1)] = 0.0
) -> Schedule:
    """The same rate at every step, after a linear rise over the share `warmup` of the steps."""
    return _Warmed(learning_rate, steps, warmup, "constant", {})


def step(
    learning_rate: float,
    steps: int,
    *,
    at: tuple[Annotated[float, (0, 1)], ...] = (0.5, 0.75),
    factor: Annotated[float, (0, 1)] = 0.1,
    warmup: Annotated[float, (0, 1)] = 0.0,
) -> Schedule:
    """The rate times `factor` at each share `at` of the run: `at=0.5,0.75`, or only one: `at=0.5,`.

    He et al., "Deep residual learning", CVPR 2016, section 4.2, for CIFAR-10. The shares are those
    of the whole run, warm-up included: a milestone stays where it is when the warm-up changes.

    Raises UsageError unless the milestones rise and come after the warm-up.
    """
    if any(later <= earlier for earlier, later in itertools.pairwise((warmup, *at))):
        flag = f"--train.schedule-options at={','.join(map(str, at))}"
        raise UsageError(f"{flag} must rise, from above warmup={warmup}")
    return _Warmed(learning_rate, steps, warmup, "step", {"at": list(at), "factor": factor})


def cosine(
    learning_rate: float,
    steps: int,
    *,
    final: Annotated[float, (0, 1)] = 0.0,
    warmup: Annotated[float, (0, 1)] = 0.0,
) -> Schedule:
    """Half a cosine from the rate down to the share `final` of it, after a linear rise.

    Loshchilov, Hutter, "SGDR", ICLR 2017, equation 5, without restarts.
    """
    return _Warmed(learning_rate, steps, warmup, "cosine", {"final": final})


def linear(
    learning_rate: float,
    steps: int,
    *,
    final: Annotated[float, (0, 1)] = 0.0,
    warmup: Annotated[float, (0, 1)] = 0.0,
) -> Schedule:
    """A straight line from the rate down to the share `final` of it, after a linear rise.

    With `warmup=0.25` it is the triangle of one cycle (Smith, Topin, "Super-convergence", 2018).
    """
    return _Warmed(learning_rate, steps, warmup, "linear", {"final": final})


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
    """
    options = {"power": power, "final": final}
    return _Warmed(learning_rate, steps, warmup, "polynomial", options)


@keras.saving.register_keras_serializable("pipeline")
class _Warmed(Schedule):
    """A linear rise, then the fall of that name; float32, a pure function of the step."""

    def __init__(
        self, learning_rate: float, steps: int, warmup: float, fall: str, options: dict[str, Any]
    ) -> None:
        self.learning_rate, self.steps, self.warmup = learning_rate, steps, warmup
        self.fall, self.options = fall, options

    def __call__(self, step: keras.KerasTensor) -> keras.KerasTensor:
        rising = self.warmup * self.steps
        step = keras.ops.cast(step, "float32")
        rate = keras.ops.cast(self.learning_rate, "float32")
        if self.fall == "step":
            for share in self.options["at"]:
                rate = rate * keras.ops.where(
                    step >= share * self.steps, self.options["factor"], 1.0
                )
        elif self.fall != "constant":
            share = keras.ops.clip((step - rising) / max(self.steps - rising, 1.0), 0.0, 1.0)
            rate = rate * _left(share, self.fall, **self.options)
        return rate * keras.ops.minimum(1.0, (step + 1.0) / rising) if rising >= 1 else rate

    def get_config(self) -> dict[str, Any]:
        names = ("learning_rate", "steps", "warmup", "fall", "options")
        return {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable("pipeline")
class Adjusted(Schedule):
    """Another schedule, lowered and hastened by variables that are kept with the optimizer's state.

    It is multiplied by a factor: 1, which changes no bit, until a run is rolled back. And where the
    run has a time limit it is asked for another step than the present one, so that its fall ends
    when the time does (Li, Yumer, Ramanan, "Budgeted training", ICLR 2020).

    Args:
        schedule: A schedule, or a rate.
        paced: Whether there is a time limit.
    """

    def __init__(self, schedule: Schedule, paced: bool = False) -> None:
        self.schedule, self.paced = schedule, paced
        self.pace = keras.Variable(
            [0.0, 0.0, 1.0], trainable=False, name="pace", aggregation="only_first_replica"
        )
        """A step, the step of the schedule there, and how many of these each later step takes."""
        self.factor = keras.Variable(
            1.0, trainable=False, name="rate_factor", aggregation="only_first_replica"
        )

    def __call__(self, step: keras.KerasTensor) -> keras.KerasTensor:
        if self.paced:
            start, reached, each = (self.pace.value[place] for place in range(3))
            step = reached + (keras.ops.cast(step, "float32") - start) * each
        rate = self.schedule
        return (rate(step) if callable(rate) else rate) * self.factor.value

    def get_config(self) -> dict[str, Any]:
        schedule = keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "paced": self.paced}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Adjusted":
        return cls(keras.saving.deserialize_keras_object(config["schedule"]), config["paced"])


def _left(
    share: keras.KerasTensor, fall: str, final: float, power: float = 1.0
) -> keras.KerasTensor:
    """Share of the rate that is left after a share of the fall."""
    left = 1.0 - share
    if fall == "cosine":
        left = 0.5 * (1.0 + keras.ops.cos(share * 3.141592653589793))
    elif fall == "polynomial":
        left = keras.ops.power(left, power)
    return final + (1.0 - final) * left
