"""The callbacks of a run, and when those that concern the whole run are called."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from pipeline.config import registry
from pipeline.training.callback_context import CallbackContext
from pipeline.training.callback_order import AFTER_CHECKPOINT, BEFORE_CHECKPOINT
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, reason


class RunCallbacks:
    """Calls `on_run_begin` and `on_run_end` of the callbacks that have them."""

    def __init__(self) -> None:
        self._begun: list[Any] = []  # callbacks whose `on_run_end` is to be called

    def begin(self, run: Any, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """Calls `on_run_begin`; first, ends those of an attempt that has failed."""
        self.end(run)
        for callback in callbacks:
            if hasattr(callback, "on_run_begin"):
                self._begun.append(callback)
                callback.on_run_begin(run)

    def end(self, run: Any) -> None:
        """Calls `on_run_end`; an error is a note.

        Args:
            run: The run with its result and its export; without a result if it ended
                early.
        """
        for callback in reversed(self._begun):
            try:
                callback.on_run_end(run)
            except Exception as error:
                own = getattr(callback, "callback", callback)
                kind = type(own).__name__
                say("note", f"after the run, the callback {kind}: {reason(error)}")
        self._begun = []


def create(context: CallbackContext) -> list[keras.callbacks.Callback]:
    """Builds the callbacks of every run, and then those of `train.callbacks`."""
    callbacks = [_call(name, {}, context) for name in BEFORE_CHECKPOINT]
    callbacks += [context.checkpoint.early_stopping, context.checkpoint]
    callbacks += [_call(name, {}, context) for name in AFTER_CHECKPOINT]
    for name, options in context.train.callbacks.items():
        callback = _call(name, options, context)
        if not isinstance(callback, keras.callbacks.Callback | None):
            raise UsageError(
                f"--train.callbacks: {name} must return a callback; got {callback!r}"
            )
        callbacks.append(callback)
    return [callback for callback in callbacks if callback is not None]


def _call(name: str, options: Mapping[str, Any], context: CallbackContext) -> Any:
    return registry.call("callbacks", name, options, context)
