"""Unfreezes layers after some epochs."""

from typing import Any

import keras

from pipeline.config.sections import Train
from pipeline.training.callback_context import CallbackContext

GROUPS = 4


def unfreeze(context: CallbackContext) -> keras.callbacks.Callback:
    """Unfreezes the layers of `train.freeze` after `train.freeze_epochs` epochs, or gradually.

    Gradual unfreezing: Howard, Ruder, "Universal language model fine-tuning for text
    classification", ACL 2018, section 3.3.
    """
    return Unfreeze(context.train)


class Unfreeze(keras.callbacks.Callback):
    """Unfreezes a group of layers after every `freeze_epochs` epochs, the last layers first."""

    def __init__(self, options: Train) -> None:
        super().__init__()
        self._epochs = options.freeze_epochs
        self._groups = 1 if options.unfreeze == "at-once" else GROUPS

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        phase = min(epoch // self._epochs, self._groups) if self._epochs else 0
        if phase <= self.model.step.phase:
            return
        layers = list(self.model._flatten_layers(include_self=False, recursive=True))
        frozen = [layer for layer in layers if layer.name in self.model.frozen]
        leaves = [layer for layer in dict.fromkeys(_leaves(frozen)) if layer.variables]
        still_frozen = len(leaves) * (self._groups - phase) // self._groups
        for layer in frozen:
            layer.trainable = True
        for layer in leaves[:still_frozen]:
            layer.trainable = False
        self.model.step.phase = phase


def _leaves(layers: list[keras.Layer]) -> list[keras.Layer]:
    """The layers without others inside, in their order."""
    return [leaf for layer in layers for leaf in _leaves(layer._layers) or [layer]]
