"""Unfreezes layers after some epochs."""

from typing import Any

import keras

from pipeline.training.callback_context import CallbackContext


def unfreeze(context: CallbackContext) -> keras.callbacks.Callback:
    """Unfreezes the layers of `train.freeze` after `train.freeze_epochs` epochs."""
    return Unfreeze(context.train.freeze_epochs)


class Unfreeze(keras.callbacks.Callback):
    """Unfreezes layers after `epochs` epochs; never if it is None."""

    def __init__(self, epochs: int | None) -> None:
        super().__init__()
        self._epochs = epochs

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._epochs is not None and epoch >= self._epochs and not self.model.step.phase:
            for layer in self.model._flatten_layers(include_self=False):
                if layer.name in self.model.frozen:
                    layer.trainable = True
            self.model.step.phase = 1
