"""What each epoch begins or ends with: layers are unfrozen; weights are averaged; more
logs.
"""

import math
import time
from typing import Any

import keras

from pipeline.config.sections import Train
from pipeline.training.callback_context import CallbackContext

GROUPS = 4


def unfreeze(context: CallbackContext) -> keras.callbacks.Callback:
    """Unfreezes the layers of `train.freeze` after `train.freeze_epochs` epochs, or
    gradually.

    Gradual unfreezing: Howard, Ruder, "Universal language model fine-tuning for text
    classification", ACL 2018, section 3.3.
    """
    return Unfreeze(context.train)


class Unfreeze(keras.callbacks.Callback):
    """Unfreezes a group of layers after every `freeze_epochs` epochs, the last layers
    first.
    """

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


def average_weights(context: CallbackContext) -> keras.callbacks.Callback:
    """Validates with averaged weights (EMA); logs skipped steps, loss scale and
    learning rate.
    """
    return AverageWeights()


class AverageWeights(keras.callbacks.Callback):
    """Adds `skipped_steps`, `learning_rate` and, if it is used, `loss_scale` to the
    logs.
    """

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
        logs["learning_rate"] = float(
            self.model.optimizer.learning_rate
        )  # of the next step


def throughput(context: CallbackContext) -> keras.callbacks.Callback:
    """Adds `examples_per_second` to the logs of each epoch."""
    return Throughput(context.batches.batch_size)


class Throughput(keras.callbacks.Callback):
    """Measures training only, without calls that trace."""

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self._batch_size = batch_size
        self._position = self._steps = self._traces = 0
        self._seconds = self._last = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._position, self._steps, self._seconds = self.model.step.position, 0, 0.0
        self._last = time.monotonic()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._traces = self.model.step.traces

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now, position = time.monotonic(), self.model.step.position
        if self.model.step.traces == self._traces:
            self._steps += position - self._position
            self._seconds += now - self._last
        self._position, self._last = position, now

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        examples = self._steps * self._batch_size
        logs["examples_per_second"] = examples / self._seconds if examples else math.nan
