"""The optimizer of a run as users' callbacks see it."""

import math
from typing import Any

import keras
import tensorflow as tf

from pipeline.training.optim.learning_rate import AdjustableRate
from pipeline.utils.errors import UsageError


def view(optimizer: keras.optimizers.Optimizer, rate: AdjustableRate) -> "View":
    """Returns an optimizer of the same class and name that shares the state.

    Its `learning_rate` is a variable, as in an optimizer without a schedule. In the
    file of a model, it is an optimizer of that class, which Keras restores with its
    state.
    """
    kind = type(optimizer)
    # Keras saves an optimizer by the module and the name of its class.
    module = kind.__module__
    if module.startswith("keras."):
        module = "keras.optimizers"
    view_class = type(kind.__name__, (View, kind), {"__module__": module})
    copy: Any = object.__new__(view_class)
    current_rate = Rate(optimizer, rate)
    iterations, *state = optimizer.variables
    copy.__dict__.update(optimizer.__dict__)
    copy.__dict__["_learning_rate"] = current_rate
    copy.__dict__["_variables"] = [iterations, current_rate, *state]
    return copy


class View(keras.optimizers.Optimizer):
    """An optimizer whose learning rate is the only attribute that can be set."""

    @property
    def learning_rate(self) -> "Rate":
        """The rate of the next step; an assigned rate lasts for the rest of the run."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if callable(value):
            raise UsageError(
                "a callback cannot set the learning rate to a schedule; set it to a"
                " number, or pass the schedule to fit: learning_rate=..."
            )
        self._learning_rate.assign(value)

    lr = learning_rate  # its name before Keras 3

    def __setattr__(self, name: str, value: Any) -> None:
        # Keras and TensorFlow, which track attributes, set names that start with "_".
        if name not in ("learning_rate", "lr") and not name.startswith("_"):
            raise UsageError(
                f"a callback cannot set {name} of the optimizer, only its learning_rate"
            )
        super().__setattr__(name, value)


class Rate(keras.Variable):
    """The learning rate of a run as a variable."""

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, rate: AdjustableRate
    ) -> None:
        self._optimizer = optimizer
        self._rate = rate
        self._shown: float | None = None
        super().__init__(0.0, dtype="float32", trainable=False, name="learning_rate")
        # The value of this replica: Python cannot convert a mirrored variable to float.
        strategy = tf.distribute.get_strategy()
        replicas = strategy.experimental_local_results(super().value)
        self._value: tf.Variable = replicas[0]

    @property
    def value(self) -> tf.Variable:
        """A TensorFlow variable that contains the rate of the next step."""
        self.settle()
        self._value.assign(self._optimizer.learning_rate)
        if tf.executing_eagerly():
            self._shown = float(self._value)
        return self._value

    def settle(self) -> None:
        """Passes a rate that was assigned to `value` itself on to the run."""
        if self._shown is None or not tf.executing_eagerly():
            return
        rate = float(self._value)
        if rate != self._shown:
            self._direct_assign(rate)

    def _direct_assign(self, value: Any) -> None:
        rate = float(value)
        if not 0 <= rate < math.inf:
            raise UsageError(
                f"a callback has set the learning rate to {rate}; it must be 0 or more"
            )
        self._shown = None
        self._rate.assign(rate)
