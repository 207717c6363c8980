"""Ends training when the loss of an epoch is not finite."""

import math
from typing import Any

import keras

from pipeline.config.registry import register
from pipeline.training.callback_context import CallbackContext
from pipeline.utils.errors import Diverged


@register
def terminate_on_nan(context: CallbackContext) -> keras.callbacks.Callback:
    """Ends training when the loss of an epoch is NaN or infinite."""
    return TerminateOnNaN()


class TerminateOnNaN(keras.callbacks.Callback):
    """Raises Diverged before the checkpoint callback saves the epoch.

    `GradientMonitor` counts single steps that are not finite; they are skipped.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        if not math.isfinite(logs["loss"]):
            raise Diverged(
                f"training diverged: the loss of epoch {epoch + 1} is {logs['loss']};"
                " lower --train.learning-rate. Nothing from this epoch was saved"
            )
