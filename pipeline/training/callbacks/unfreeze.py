"""Unfreezes layers during training, all at once or gradually."""

from fractions import Fraction
from typing import Any

import keras

from pipeline.config.registry import register
from pipeline.config.sections import TrainConfig
from pipeline.training import freezing
from pipeline.training.callback_context import CallbackContext

GROUPS = 4


@register
def unfreeze(context: CallbackContext) -> keras.callbacks.Callback:
    """Unfreezes the layers of `train.freeze` after `train.freeze_epochs` epochs.

    Gradual unfreezing: Howard, Ruder, "Universal language model fine-tuning for text
    classification", ACL 2018, section 3.3.
    """
    return Unfreeze(context.train)


class Unfreeze(keras.callbacks.Callback):
    """Unfreezes a group of layers every `freeze_epochs` epochs, the last ones first."""

    def __init__(self, options: TrainConfig) -> None:
        super().__init__()
        self._epochs = options.freeze_epochs
        self._groups = 1 if options.unfreeze == "at-once" else GROUPS

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        phase = min(epoch // self._epochs, self._groups) if self._epochs else 0
        if phase <= self.model.step.phase:
            return
        freezing.unfreeze(self.model, Fraction(phase, self._groups))
        self.model.step.phase = phase
