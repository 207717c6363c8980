"""Validates with averaged weights (EMA)."""

from typing import Any

import keras

from pipeline.config.registry import register
from pipeline.training.callback_context import CallbackContext


@register
def average_weights(context: CallbackContext) -> keras.callbacks.Callback:
    """Validates with the moving averages of the weights, if `train.ema` is set."""
    return AverageWeights()


class AverageWeights(keras.callbacks.Callback):
    """Swaps the weights with their averages, which `UpdateRule` maintains."""

    def on_test_begin(self, logs: Any = None) -> None:
        self.model.step.update.swap_ema()

    def on_test_end(self, logs: Any = None) -> None:
        self.model.step.update.swap_ema()
