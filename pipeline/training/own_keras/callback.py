"""Callbacks that users hand over: Keras callbacks and their classes."""

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras.src.utils.python_utils import is_default

from pipeline.training.callback_context import CallbackContext
from pipeline.utils.errors import UsageError

# Callbacks that would work against the run -> what to use instead.
_REPLACED = {
    "BackupAndRestore": "every run is resumed from its checkpoints: set run_directory",
    "SwapEMAWeights": 'use train={"ema": 0.999}',
    "ProgbarLogger": "the run prints its own progress",
}
# Attributes of callbacks of Keras, W&B and MLflow: a number of batches, or `epoch` or None.
_FREQUENCIES = ("save_freq", "update_freq", "log_freq", "log_every_n_steps")
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


def adapt(found: Any) -> Callable[..., keras.callbacks.Callback | None]:
    """A registered callback for a Keras callback, its class, or a function of the context."""
    if inspect.isfunction(found):
        return found

    if not inspect.isclass(found):
        from_object(found)

    def callback(context: CallbackContext, **options: Any) -> keras.callbacks.Callback | None:
        made = found(**options) if inspect.isclass(found) else found
        return from_object(made) if context.is_chief else None

    return callback


def from_object(callback: Any) -> "OwnCallback":
    """The callback as part of a run.

    Raises:
        UsageError: It is not a callback, or works against the run.
    """
    name = type(callback).__name__
    if not isinstance(callback, keras.callbacks.Callback):
        raise UsageError(f"a callback must be a name or a Keras callback; got {name}")
    if name in _REPLACED:
        raise UsageError(f"the callback {name} cannot be used: {_REPLACED[name]}")
    if getattr(callback, "restore_best_weights", False):
        raise UsageError(
            f"the callback {name} cannot restore the best weights; use "
            f'train={{"patience": {max(1, getattr(callback, "patience", 1))}}}, which does'
        )
    return OwnCallback(callback)


class OwnCallback(keras.callbacks.Callback):
    """Calls a user's callback as Keras does: once for each call of the compiled function.

    Its `model` is a plain Keras model, from raw inputs to answers, that shares the weights of the
    network in training. Its `optimizer` has the rate of the run: setting it lasts.
    """

    def __init__(self, callback: keras.callbacks.Callback) -> None:
        super().__init__()
        self.callback = callback
        self._view: Any = None
        kind = type(callback)
        own = (name for name in _BATCH_HOOKS if not is_default(getattr(callback, name)))
        hook = next(own, None)
        stated = [getattr(callback, name) for name in _FREQUENCIES if hasattr(callback, name)]
        self.per_batch: str | None = None
        """Why it must be called after each step; None if once a call is enough."""
        is_own = kind is keras.callbacks.LambdaCallback or not kind.__module__.startswith("keras.")
        if any(isinstance(frequency, int) for frequency in stated):
            self.per_batch = f"the callback {kind.__name__} counts batches"
        elif hook and is_own and not stated:  # else it listens per epoch
            self.per_batch = f"the callback {kind.__name__} has {hook}"

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        self.callback.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._view = model.plain()
        self._view.optimizer = _Optimizer(model)
        self._view.fit = _refuse_fit
        self.callback.set_model(self._view)


def _hook(name: str) -> Callable[..., None]:
    """A method that calls that of the user's callback, and names it in an error.

    `stop_training` is passed on in both directions.
    """

    def call(self: OwnCallback, *arguments: Any, **named: Any) -> None:
        self._view.stop_training = self.model.stop_training
        try:
            getattr(self.callback, name)(*arguments, **named)
        except Exception as error:
            kind = type(self.callback).__name__
            error.add_note(f"raised by the callback {kind}; the run can be resumed")
            raise
        self.model.stop_training = self._view.stop_training

    return call


for _name in dir(keras.callbacks.Callback):
    if _name.startswith("on_"):
        setattr(OwnCallback, _name, _hook(_name))


def _refuse_fit(*arguments: Any, **named: Any) -> None:
    raise UsageError("a callback must not call fit of the model that is being trained")


class _Optimizer:
    """The optimizer of a run, as callbacks see it."""

    def __init__(self, model: keras.Model) -> None:
        self.__dict__["_model"] = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model.optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "learning_rate":
            raise UsageError(f"a callback cannot set {name} of the optimizer")
        factor = self._model.step.update.factor
        current = float(np.asarray(self._model.optimizer.learning_rate))
        factor.assign(factor * (float(value) / current))
