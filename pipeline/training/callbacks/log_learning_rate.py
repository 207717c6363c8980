"""Logs the learning rate, the loss scale and the skipped steps."""

from typing import Any

import keras

from pipeline.config.registry import register
from pipeline.training.callback_context import CallbackContext


@register
def log_learning_rate(context: CallbackContext) -> keras.callbacks.Callback:
    """Adds the learning rate, the skipped steps and the loss scale to the logs."""
    return LogLearningRate()


class LogLearningRate(keras.callbacks.Callback):
    """Adds `skipped_steps`, `learning_rate` and, if used, `loss_scale` to the logs."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        update = self.model.step.update
        if update.scaled:
            logs["loss_scale"] = float(update.scale.numpy())
        # Always, because the history has one value per epoch.
        logs["skipped_steps"] = update.skipped_steps
        # The rate of the next step.
        logs["learning_rate"] = float(self.model.optimizer.learning_rate)
