"""The learning rate of a run: a schedule that a run can lower or speed up."""

from typing import Any

import keras

Schedule = keras.optimizers.schedules.LearningRateSchedule


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
