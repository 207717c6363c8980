"""Adapts users' callbacks: Keras callbacks and their classes."""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.layers.nested import all_layers
from pipeline.training.callback_context import CallbackContext
from pipeline.training.distributed import mean_over_workers
from pipeline.training.optim.learning_rate import AdjustableRate
from pipeline.training.pretrained import without_optimizer
from pipeline.utils.errors import UsageError, reason, suggest

# Callbacks that would work against the run -> what to use instead.
_REPLACED = {
    "BackupAndRestore": "every run is resumed from its checkpoints: set run_directory",
    "SwapEMAWeights": 'use train={"ema": 0.999}',
    "ProgbarLogger": "the run prints its own progress",
}
# Attributes of callbacks of Keras, W&B and MLflow: a number of batches, "epoch" or
# None.
_FREQUENCIES = ("save_freq", "update_freq", "log_freq", "log_every_n_steps")
_BATCH_HOOKS = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)


def adapt(callback: Any) -> Callable[..., keras.callbacks.Callback | None]:
    """Returns a registered callback for a Keras callback, its class, or a function.

    A function of the context is already a registered callback.
    """
    if inspect.isfunction(callback):
        return callback

    if not inspect.isclass(callback):
        from_object(callback)

    def build_callback(
        context: CallbackContext, **options: Any
    ) -> keras.callbacks.Callback | None:
        instance = callback(**options) if inspect.isclass(callback) else callback
        return from_object(instance, context.is_chief)

    return build_callback


def from_object(callback: Any, is_chief: bool = True) -> "UserCallback":
    """Wraps a callback for a run; of several workers, only the chief calls it.

    Raises:
        UsageError: It is not a callback, or interferes with the run.
    """
    name = type(callback).__name__
    if not isinstance(callback, keras.callbacks.Callback):
        raise UsageError(f"a callback must be a name or a Keras callback; got {name}")
    if name in _REPLACED:
        raise UsageError(f"the callback {name} cannot be used: {_REPLACED[name]}")
    if getattr(callback, "restore_best_weights", False):
        options = f'"patience": {max(1, getattr(callback, "patience", 1))}'
        weights = "lowest val_loss"
        if getattr(callback, "monitor", "val_loss") != "val_loss":
            options += ', "evaluate_every": 1'
            weights = "best validation metric of the task"
        raise UsageError(
            f"the callback {name} cannot restore the best weights; remove it and use"
            f" train={{{options}}}, which restores the weights of the {weights}"
        )
    return UserCallback(callback, is_chief)


class UserCallback(keras.callbacks.Callback):
    """Calls a user's callback as Keras does: once per call of the compiled function.

    The callback's `model` is a plain Keras model that shares the layers of the network
    in training. Its `optimizer` shares the learning rate of the run, so that an
    assigned rate lasts. The other workers get the rate and `stop_training` from the
    chief.
    """

    def __init__(
        self, callback: keras.callbacks.Callback, is_chief: bool = True
    ) -> None:
        super().__init__()
        self.callback = callback
        self._is_chief = is_chief
        self._view: Any = None
        self.per_batch = _reason_for_each_step(callback)
        """Why it must be called after each step; None if once per call is enough."""

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        self.callback.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        # In each worker, because all workers create a variable together.
        optimizer = _view_of(model.optimizer, model.step.update.rate)
        self._view = model.to_keras_model(optimizer)
        self._view.fit = self._view.train_on_batch = _refuse_fit
        self._view.compile = _refuse_compile
        self._view.get_layer = functools.partial(_layer, self._view)
        # Without the optimizer, so that the file fits a model with any optimizer.
        self._view.save_weights = without_optimizer(self._view).save_weights
        if self._is_chief:
            self.callback.set_model(self._view)
            _set_mode(self.callback, model.metrics)

    def on_run_begin(self, run: Any) -> None:
        """Calls the method of the user's callback if it has one.

        Raises:
            UsageError: It fails, such as a tracker that cannot reach its server.
        """
        begin = getattr(self.callback, "on_run_begin", None)
        if not begin or not self._is_chief:
            return
        try:
            begin(run)
        except Exception as error:
            kind = type(self.callback).__name__
            raise UsageError(f"the callback {kind}: {reason(error)}") from error

    def on_run_end(self, run: Any) -> None:
        """Calls the method of the user's callback if it has one."""
        end = getattr(self.callback, "on_run_end", None)
        if end and self._is_chief:
            end(run)

    def share(self) -> None:
        """Passes the rate and `stop_training` of the chief to all workers."""
        strategy = tf.distribute.get_strategy()
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return
        assigned = self.model.step.update.rate.assigned
        # The mean over all workers, to which only the chief contributes.
        share = mean_over_workers(float(self._is_chief))
        rate = mean_over_workers(float(assigned.numpy()) * self._is_chief)
        stops = mean_over_workers(float(self.model.stop_training and self._is_chief))
        assigned.assign(rate / share)
        self.model.stop_training = stops > 0


def _hook(name: str) -> Callable[..., None]:
    """Returns a method that calls the same method of the user's callback.

    An error names the callback. `stop_training` is passed on in both directions.
    """
    is_shared = name.startswith(("on_epoch_", "on_train_"))

    def call(self: UserCallback, *arguments: Any, **named: Any) -> None:
        if self._is_chief:
            call_user(self, *arguments, **named)
        if is_shared:
            self.share()

    def call_user(self: UserCallback, *arguments: Any, **named: Any) -> None:
        self._view.stop_training = self.model.stop_training
        kind = type(self.callback).__name__
        try:
            getattr(self.callback, name)(*arguments, **named)
            self._view.optimizer.learning_rate.settle()
        except AttributeError as error:
            raise _explain(error, self._view, kind) from error
        except Exception as error:
            error.add_note(f"raised by the callback {kind}; the run can be resumed")
            raise
        self.model.stop_training = self._view.stop_training

    return call


for _name in dir(keras.callbacks.Callback):
    if _name.startswith("on_"):
        setattr(UserCallback, _name, _hook(_name))


def _set_mode(callback: Any, metrics: Sequence[keras.metrics.Metric]) -> None:
    """Tells a callback that monitors a metric whether higher is better.

    Keras looks for the metric only in the metrics that the model was compiled with.
    """
    if getattr(callback, "mode", None) != "auto" or not hasattr(callback, "monitor"):
        return
    name = callback.monitor.removeprefix("val_")
    for metric in metrics:
        direction = getattr(metric, "_direction", None)
        if metric.name == name and direction:
            callback.mode = "max" if direction == "up" else "min"
            return


def _reason_for_each_step(callback: keras.callbacks.Callback) -> str | None:
    """Returns why a callback must be called after each step; None if it need not be."""
    kind = type(callback)
    frequencies = []
    for name in _FREQUENCIES:
        if hasattr(callback, name):
            frequencies.append(getattr(callback, name))
    if any(isinstance(frequency, int) for frequency in frequencies):
        return f"the callback {kind.__name__} counts batches"
    is_lambda = kind is keras.callbacks.LambdaCallback
    if kind.__module__.startswith("keras.") and not is_lambda:
        return None
    if frequencies:  # it is called once per epoch
        return None
    for name in _BATCH_HOOKS:
        is_default = getattr(kind, name) is getattr(keras.callbacks.Callback, name)
        if name in vars(callback) or not is_default:
            return f"the callback {kind.__name__} has {name}"
    return None


def _explain(error: AttributeError, view: keras.Model, kind: str) -> Exception:
    """Returns a one-line error about a missing attribute of the model or optimizer."""
    names = {id(view): "self.model", id(view.optimizer): "self.model.optimizer"}
    name = names.get(id(error.obj))
    if name is None:
        error.add_note(f"raised by the callback {kind}; the run can be resumed")
        return error
    hint = "read or set its learning_rate"
    if name == "self.model":
        hint = (
            "attributes of your own class are on its layer: self.model.get_layer(NAME)"
        )
    return UsageError(
        f"the callback {kind} uses {name}.{error.name}, which the"
        f" {type(error.obj).__name__} of a run does not have; {hint}"
    )


def _layer(
    model: keras.Model, name: str | None = None, index: int | None = None
) -> keras.Layer:
    """Returns a layer, like `get_layer`, but also a layer inside of a layer by name."""
    if name is None or any(layer.name == name for layer in model.layers):
        return keras.Model.get_layer(model, name=name, index=index)
    inner = all_layers(model)
    layer = next((layer for layer in inner if layer.name == name), None)
    if layer is None:
        names = [layer.name for layer in model.layers]
        raise UsageError(
            f"a callback asks for the layer {name!r}; {suggest(name, names)}"
        )
    return layer


def _refuse_fit(*arguments: Any, **named: Any) -> None:
    raise UsageError("a callback must not train the model that is being trained")


def _refuse_compile(*arguments: Any, **named: Any) -> None:
    raise UsageError(
        "a callback must not compile the model that is being trained; pass optimizer,"
        " loss and metrics to fit"
    )


def _view_of(
    optimizer: keras.optimizers.Optimizer, rate: AdjustableRate
) -> "OptimizerView":
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
    view_class = type(kind.__name__, (OptimizerView, kind), {"__module__": module})
    copy: Any = object.__new__(view_class)
    current_rate = Rate(optimizer, rate)
    iterations, *state = optimizer.variables
    copy.__dict__.update(optimizer.__dict__)
    copy.__dict__["_learning_rate"] = current_rate
    copy.__dict__["_variables"] = [iterations, current_rate, *state]
    return copy


class OptimizerView(keras.optimizers.Optimizer):
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

    def __repr__(self) -> str:
        return f"<Variable name=learning_rate, value={float(self.value)}>"

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
