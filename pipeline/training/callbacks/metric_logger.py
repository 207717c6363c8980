"""Logs metrics: of each epoch as lines of JSON, and within epochs as well for
TensorBoard.
"""

import json
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.training import event_files
from pipeline.training.callback_context import CallbackContext
from pipeline.training.event_files import EventFile
from pipeline.utils import files
from pipeline.utils.console import say
from pipeline.utils.errors import reason

_SECONDS = 1.0  # between points within an epoch
_WITHIN = "batch_"  # the tags of such points begin with this, as in Keras


def metric_logger(context: CallbackContext) -> keras.callbacks.Callback | None:
    """Writes the metrics of each epoch to `log.jsonl` and to TensorBoard files."""
    return MetricLogger(context) if context.is_chief else None


class MetricLogger(keras.callbacks.Callback):
    """Writes a JSON object per epoch to `log.jsonl`: epoch, step, seconds of the run,
    all metrics.

    The same values are written for TensorBoard, with Keras's names (`epoch_loss`, ...),
    in the runs `train` and `validation`. `train` also has the config, and points within
    epochs against the step (`batch_loss`, ...), at most one a second: the metrics of
    the epoch so far, the learning rate.

    Both contain the history of the checkpoint callback, which is called first. They are
    rewritten when a run resumes and after a failed write, so that no epoch is missing
    or duplicated, no matter when a process was killed. Points after the checkpoint are
    then removed.
    """

    def __init__(self, context: CallbackContext) -> None:
        super().__init__()
        self._run, self._batches = context.run, context.batches
        self._checkpoint, self._tensorboard = (
            context.checkpoint,
            context.log.tensorboard,
        )
        self._writers: dict[str, EventFile] = {}
        self._is_current = False
        """Whether all earlier epochs have been written."""
        self._reported = False
        self._due = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        if not self._is_current:
            self.write()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, float] | None = None
    ) -> None:
        if not (self._is_current and self._tensorboard) or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _SECONDS
        rate = float(np.asarray(self.model.optimizer.learning_rate))
        values = {**(logs or {}), "learning_rate": rate}
        try:
            writer = self._writer("train")
            for name, value in values.items():
                writer.add(
                    self.model.step.position, f"{_WITHIN}{name}", simple_value=value
                )
            writer.flush()
        except (OSError, tf.errors.OpError) as error:
            self._failed(error)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.write(epoch if self._is_current else 0)

    def write(self, first: int = 0) -> None:
        """Writes the epochs from `first` on; 0 replaces everything that was written
        before.
        """
        epochs = range(first, self._checkpoint.epoch)
        lines = "".join(map(self._line, epochs))
        try:
            if first:
                with self._run.log.open("a", encoding="utf-8") as file:
                    file.write(lines)
            else:
                files.write_text(self._run.log, lines)
            if self._tensorboard:
                self._write_scalars(epochs)
            self._is_current = True
        except (OSError, tf.errors.OpError) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._is_current = False
        if not self._reported:
            self._reported = True
            why = getattr(error, "strerror", None) or reason(error)
            say(
                "warning",
                f"{self._run.log} cannot be written: {why}; training continues",
            )

    def _line(self, epoch: int) -> str:
        values = {
            name: values[epoch] for name, values in self._checkpoint.history.items()
        }
        step, seconds = self._batches.end_of(epoch), self._checkpoint.seconds[epoch]
        entry = {"epoch": epoch + 1, "step": step, "seconds": seconds, **values}
        return json.dumps(files.strict(entry)) + "\n"

    def _begin_scalars(self) -> None:
        """Starts over with the config and the points within epochs up to the
        checkpoint.
        """
        train, self._writers = self._run.tensorboard / "train", {}
        kept = [
            event
            for event in event_files.read(train)
            if event.step <= self._checkpoint.step
            and any(value.tag.startswith(_WITHIN) for value in event.summary.value)
        ]
        self._writers["train"] = EventFile(train, kept)
        if self._run.config.is_file():
            text = self._run.config.read_text(encoding="utf-8")
            self._writers["train"].add_text("config", text)

    def _write_scalars(self, epochs: range) -> None:
        if not self._is_current:
            self._begin_scalars()
        for epoch in epochs:
            for name, values in self._checkpoint.history.items():
                writer = self._writer(
                    "validation" if name.startswith("val_") else "train"
                )
                writer.add(
                    epoch,
                    f"epoch_{name.removeprefix('val_')}",
                    simple_value=values[epoch],
                )
        for writer in self._writers.values():
            writer.flush()

    def _writer(self, part: str) -> EventFile:
        if part not in self._writers:
            self._writers[part] = EventFile(self._run.tensorboard / part)
        return self._writers[part]
