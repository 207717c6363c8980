"""Trains frozen layers from an epoch on."""

from typing import Any

import keras

from pipeline.training.callback_context import CallbackContext


def unfreeze(context: CallbackContext) -> keras.callbacks.Callback:
    """Trains the layers of `train.freeze` from the epoch `train.freeze_epochs` on."""
    return Unfreeze(context.train.freeze_epochs)


class Unfreeze(keras.callbacks.Callback):
    """Trains frozen layers from an epoch on; never if that is None."""

    def __init__(self, epochs: int | None) -> None:
        super().__init__()
        self._epochs = epochs

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._epochs is not None and epoch >= self._epochs and not self.model.step.phase:
            for layer in self.model._flatten_layers(include_self=False):
                if layer.name in self.model.frozen:
                    layer.trainable = True
            self.model.step.phase = 1
