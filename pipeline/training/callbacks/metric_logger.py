"""Logs metrics as lines of JSON and for TensorBoard."""

import json
import textwrap
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.training import tensorboard
from pipeline.training.callback_context import CallbackContext
from pipeline.utils import files
from pipeline.utils.console import say
from pipeline.utils.errors import reason

_SECONDS = 1.0  # between points within an epoch
_BATCH_PREFIX = "batch_"  # of the tags of these points, as in Keras


@register
def metric_logger(context: CallbackContext) -> keras.callbacks.Callback | None:
    """Writes the metrics of each epoch to `log.jsonl` and to TensorBoard files."""
    return MetricLogger(context) if context.is_chief else None


class MetricLogger(keras.callbacks.Callback):
    """Writes a JSON object per epoch to `log.jsonl`.

    It has the epoch, the step, the seconds since the start of the run, and all metrics.

    The same values are written for TensorBoard, with Keras's names (`epoch_loss`, ...),
    in the runs `train` and `validation`. `train` also has the config, and points within
    epochs by step (`batch_loss`, ...), at most one per second: the metrics of the epoch
    so far, and the learning rate.

    Both logs contain the history of the checkpoint callback, which is called first.
    They are rewritten when a run resumes and after a failed write, so that no epoch is
    missing or duplicated, no matter when a process was killed. Points after the
    checkpoint are then removed.
    """

    def __init__(self, context: CallbackContext) -> None:
        super().__init__()
        self._run = context.run
        self._batches = context.batches
        self._checkpoint = context.checkpoint
        self._tensorboard = context.log.tensorboard
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
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
            with self._writer("train").as_default(self.model.step.position):
                for name, value in values.items():
                    tf.summary.scalar(f"{_BATCH_PREFIX}{name}", value)
        except (OSError, tf.errors.OpError) as error:
            self._report_failure(error)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.write(epoch if self._is_current else 0)

    def write(self, first: int = 0) -> None:
        """Writes the epochs from `first` on; 0 replaces all earlier ones."""
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
            self._report_failure(error)

    def _report_failure(self, error: Exception) -> None:
        self._is_current = False
        if self._reported:
            return
        self._reported = True
        why = getattr(error, "strerror", None) or reason(error)
        text = f"{self._run.log} cannot be written: {why}; training continues"
        say("warning", text)

    def _line(self, epoch: int) -> str:
        entry = {
            "epoch": epoch + 1,
            "step": self._batches.end_of(epoch),
            "seconds": self._checkpoint.seconds[epoch],
        }
        for name, values in self._checkpoint.history.items():
            entry[name] = values[epoch]
        return json.dumps(files.strict(entry)) + "\n"

    def _begin_scalars(self) -> None:
        """Starts over with the config and the points up to the checkpoint."""
        folder = self._run.tensorboard / "train"
        scalars = list(tensorboard.read_scalars(folder))
        self._writers = {}
        with self._writer("train").as_default():
            for step, tag, value in scalars:
                if tag.startswith(_BATCH_PREFIX) and step <= self._checkpoint.step:
                    tf.summary.scalar(tag, value, step)
            if self._run.config.is_file():
                text = self._run.config.read_text(encoding="utf-8")
                # A block of code in Markdown, which is shown unchanged.
                tf.summary.text("config", textwrap.indent(text, "    "), 0)

    def _write_scalars(self, epochs: range) -> None:
        if not self._is_current:
            self._begin_scalars()
        for epoch in epochs:
            for name, values in self._checkpoint.history.items():
                part = "validation" if name.startswith("val_") else "train"
                tag = f"epoch_{name.removeprefix('val_')}"
                with self._writer(part).as_default(epoch):
                    tf.summary.scalar(tag, values[epoch])

    def _writer(self, part: str) -> tf.summary.SummaryWriter:
        if part not in self._writers:
            folder = self._run.tensorboard / part
            self._writers[part] = tensorboard.new_writer(folder)
        return self._writers[part]
