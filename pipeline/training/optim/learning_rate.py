"""The learning rate of a run: its schedule, what changes it, and factors of layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.optimizers.schedules import LearningRateSchedule

from pipeline.config import config, registry
from pipeline.training.layer_names import layers_named
from pipeline.training.optim.step_stats import counter
from pipeline.utils.errors import require_kind


@keras.saving.register_keras_serializable("pipeline")
class AdjustableRate(LearningRateSchedule):
    """A schedule that variables of the optimizer's state can lower and speed up.

    A rate that a callback has assigned replaces the schedule. The rate is multiplied by
    `factor`, which is 1 until a run is rolled back. If a time limit paces the schedule,
    it may be evaluated at a later step than the current one, so that it ends when the
    time does (Li, Yumer, Ramanan, "Budgeted training", ICLR 2020).
    """

    def __init__(
        self, schedule: LearningRateSchedule | float, paced: bool = False
    ) -> None:
        self.schedule = schedule
        self.paced = paced
        self.pace = counter("pace", [0.0, 0.0, 1.0], "float32")
        """A step, the schedule's position at it, and the increment per later step."""
        self.factor = counter("rate_factor", 1.0, "float32")
        self.assigned = counter("assigned_rate", -1.0, "float32")
        """The rate that replaces the schedule; negative: none."""

    def assign(self, rate: float) -> None:
        """Replaces the schedule by a rate, which may be 0, for the rest of the run."""
        self.assigned.assign(rate / float(self.factor.numpy()))

    def __call__(self, step: keras.KerasTensor) -> keras.KerasTensor:
        if self.paced:
            start, position, increment = tf.unstack(self.pace.value)
            step = position + (keras.ops.cast(step, "float32") - start) * increment
        rate = self.schedule(step) if callable(self.schedule) else self.schedule
        assigned = self.assigned.value
        return keras.ops.where(assigned < 0, rate, assigned) * self.factor.value

    def get_config(self) -> dict[str, Any]:
        schedule = keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "paced": self.paced}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AdjustableRate":
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(schedule, config["paced"])


def build_rate(
    options: config.TrainConfig, last_step: int, paced: bool
) -> AdjustableRate:
    """Builds the learning rate of `train.schedule`; `paced` if time is limited."""
    name = options.schedule
    schedule = registry.call(
        "schedules", name, options.schedule_options, options.learning_rate, last_step
    )
    kind = LearningRateSchedule | float
    require_kind(schedule, kind, f"--train.schedule {name}", "a schedule")
    return AdjustableRate(schedule, paced)


def layer_rates(
    layers: Sequence[keras.Layer], rates: Mapping[str, float]
) -> dict[int, float]:
    """Returns id of a variable -> factor of its learning rate.

    If several prefixes match a layer, the last one counts.
    """
    factors: dict[int, float] = {}
    for prefix, factor in rates.items():
        for layer in layers_named(layers, prefix, "--train.layer-rates"):
            factors |= dict.fromkeys(map(id, layer.variables), factor)
    return factors
