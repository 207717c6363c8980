"""Logs the throughput of training in examples per second."""

import math
import time
from typing import Any

import keras

from pipeline.config.registry import register
from pipeline.training.callback_context import CallbackContext


@register
def throughput(context: CallbackContext) -> keras.callbacks.Callback:
    """Adds `examples_per_second` to the logs of each epoch."""
    return Throughput(context.batches.batch_size)


class Throughput(keras.callbacks.Callback):
    """Measures training without validation and without calls that trace."""

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self._batch_size = batch_size
        self._position = 0
        self._steps = 0
        self._traces = 0
        self._seconds = 0.0
        self._last = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._position = self.model.step.position
        self._steps = 0
        self._seconds = 0.0
        self._last = time.monotonic()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._traces = self.model.step.traces

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.monotonic()
        position = self.model.step.position
        if self.model.step.traces == self._traces:
            self._steps += position - self._position
            self._seconds += now - self._last
        self._position = position
        self._last = now

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        examples = self._steps * self._batch_size
        logs["examples_per_second"] = examples / self._seconds if examples else math.nan
