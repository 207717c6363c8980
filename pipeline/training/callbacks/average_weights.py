"""Validation with the moving average of the weights."""

from typing import Any

import keras

from pipeline.training.callback_context import CallbackContext


def average_weights(context: CallbackContext) -> keras.callbacks.Callback:
    """Validates with averaged weights (EMA); logs skipped steps, loss scale and learning rate."""
    return AverageWeights()


class AverageWeights(keras.callbacks.Callback):
    """Validates with the averaged weights; adds `skipped_steps`, `loss_scale` and `learning_rate`
    to the logs of each epoch."""

    def on_test_begin(self, logs: Any = None) -> None:
        self.model.step.update.swap_ema()

    def on_test_end(self, logs: Any = None) -> None:
        self.model.step.update.swap_ema()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        update = self.model.step.update
        if update.scaled:
            logs["loss_scale"] = float(update.scale.numpy())
        # Always, because the history has one value per epoch.
        logs["skipped_steps"] = update.skipped
        logs["learning_rate"] = float(self.model.optimizer.learning_rate)  # of the next step
