"""Validates with the moving average of the weights."""

from typing import Any

import keras

from pipeline.training.callback_context import CallbackContext


def average_weights(context: CallbackContext) -> keras.callbacks.Callback:
    """Validates with the moving average of the weights (EMA); logs what the update rule knows."""
    return AverageWeights()


class AverageWeights(keras.callbacks.Callback):
    """Validates with the averaged weights; adds to the logs what the update rule knows:
    `skipped_steps`, `loss_scale`, `learning_rate`."""

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.model.step.update.swap_ema()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self.model.step.update.swap_ema()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        update = self.model.step.update
        if update.scaled:
            logs["loss_scale"] = float(update.scale.numpy())
        # Always, as the history has one value per epoch.
        logs["skipped_steps"] = update.skipped
        logs["learning_rate"] = float(self.model.optimizer.learning_rate)  # of the next step
