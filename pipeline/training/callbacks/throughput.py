"""Examples per second of the training steps."""

import math
import time
from typing import Any

import keras

from pipeline.contracts import Batches
from pipeline.training.callback_context import CallbackContext


def throughput(context: CallbackContext) -> keras.callbacks.Callback:
    """Adds `examples_per_second` to the logs of each epoch."""
    return Throughput(context.batches)


class Throughput(keras.callbacks.Callback):
    """Adds `examples_per_second` to the epoch's logs: training alone, calls that trace left out."""

    def __init__(self, batches: Batches) -> None:
        super().__init__()
        self._batches = batches
        self._done = 0
        self._counted = 0
        self._seconds = 0.0
        self._last = 0.0
        self._traces = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._done, self._counted, self._seconds = self.model.step.position, 0, 0.0
        self._last = time.monotonic()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._traces = self.model.step.traces

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        now, done = time.monotonic(), self.model.step.position
        if self.model.step.traces == self._traces:
            self._counted += done - self._done
            self._seconds += now - self._last
        self._done, self._last = done, now

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        examples = self._counted * self._batches.batch_size
        logs["examples_per_second"] = examples / self._seconds if examples else math.nan
