"""The learning rate of a run: a schedule that the run can lower or speed up."""

from typing import Any

import keras
from keras.optimizers.schedules import LearningRateSchedule

from pipeline.training.optim.step_stats import counter


@keras.saving.register_keras_serializable("pipeline")
class Adjusted(LearningRateSchedule):
    """A schedule that is lowered and sped up by variables saved with the optimizer's state.

    The rate is multiplied by `factor`, which is 1 until a run is rolled back. With a time limit,
    the schedule may be evaluated at a later step than the current one, so that it ends when the
    time does (Li, Yumer, Ramanan, "Budgeted training", ICLR 2020).

    Args:
        schedule: A schedule or a constant rate.
        paced: Whether there is a time limit.
    """

    def __init__(self, schedule: LearningRateSchedule | float, paced: bool = False) -> None:
        self.schedule, self.paced = schedule, paced
        self.pace = counter("pace", [0.0, 0.0, 1.0], "float32")
        """A step, the schedule's position at that step, and its increment per later step."""
        self.factor = counter("rate_factor", 1.0, "float32")

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
