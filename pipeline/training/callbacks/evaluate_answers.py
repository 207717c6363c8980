"""Evaluates the answers to the validation split during training."""

from collections.abc import Callable
from typing import Any

import keras

from pipeline.training.callback_context import CallbackContext


def evaluate_answers(context: CallbackContext) -> keras.callbacks.Callback | None:
    """Adds the metrics of the final test, for the validation split, to the logs of
    every `train.evaluate_every` epochs, with averaged weights if there are any.
    """
    every = context.train.evaluate_every
    if every is None or context.evaluate is None:
        return None
    return EvaluateAnswers(every, context.batches.epochs, context.evaluate)


class EvaluateAnswers(keras.callbacks.Callback):
    """Adds `val_NAME` for each metric that is one number and not in the logs yet."""

    def __init__(
        self, every: int, epochs: int, evaluate: Callable[[Any], dict[str, Any]]
    ) -> None:
        super().__init__()
        self._every = every
        self._epochs = epochs
        self._evaluate = evaluate

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        is_last = epoch + 1 == self._epochs
        if (epoch + 1) % self._every and not is_last:
            return
        update = self.model.step.update
        update.swap_ema()
        metrics = self._evaluate(self.model)
        update.swap_ema()
        for name, value in metrics.items():
            if isinstance(value, float):
                logs.setdefault(f"val_{name}", value)
