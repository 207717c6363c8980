"""Logs the metrics of each epoch, as lines of JSON and as scalars for TensorBoard."""

import json
import time
from typing import Any

import keras
import tensorflow as tf

from pipeline.training.callback_context import CallbackContext
from pipeline.utils import files
from pipeline.utils.console import say
from pipeline.utils.errors import reason

# TensorBoard looks for `tfevents` in the name; TensorFlow's own writer would add the host name.
_EVENTS = "events.out.tfevents.scalars"


def metric_logger(context: CallbackContext) -> keras.callbacks.Callback | None:
    """Writes the metrics of each epoch to `log.jsonl` and to TensorBoard files."""
    return MetricLogger(context) if context.is_chief else None


class MetricLogger(keras.callbacks.Callback):
    """Writes a JSON object per epoch to `log.jsonl`: epoch, step, seconds of the run, all metrics.

    The same values are written for TensorBoard, with Keras's names (`epoch_loss`, ...), in the runs
    `train` and `validation`.

    Both contain the history of the checkpoint callback, which is called first. They are rewritten
    when a run resumes and after a failed write, so that no epoch is missing or duplicated, no
    matter when a process was killed.
    """

    def __init__(self, context: CallbackContext) -> None:
        super().__init__()
        self._run, self._batches = context.run, context.batches
        self._checkpoint, self._tensorboard = context.checkpoint, context.log.tensorboard
        self._writers: dict[str, Any] = {}
        self._is_current = False
        """Whether all earlier epochs have been written."""
        self._reported = False

    def on_train_begin(self, logs: Any = None) -> None:
        if not self._is_current:
            self.write()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.write(epoch if self._is_current else 0)

    def write(self, first: int = 0) -> None:
        """Writes the epochs from `first` on; 0 replaces everything that was written before."""
        epochs = range(first, self._checkpoint.epoch)
        lines = "".join(map(self._line, epochs))
        try:
            if first:
                with self._run.log.open("a", encoding="utf-8") as file:
                    file.write(lines)
            else:
                files.write_text(self._run.log, lines)
            self._write_scalars(epochs)
            self._is_current = True
        except (OSError, tf.errors.OpError) as error:
            self._is_current = False
            if not self._reported:
                self._reported = True
                why = getattr(error, "strerror", None) or reason(error)
                say("warning", f"{self._run.log} cannot be written: {why}; training continues")

    def _line(self, epoch: int) -> str:
        values = {name: values[epoch] for name, values in self._checkpoint.history.items()}
        step, seconds = self._batches.end_of(epoch), self._checkpoint.seconds[epoch]
        entry = {"epoch": epoch + 1, "step": step, "seconds": seconds, **values}
        return json.dumps(files.strict(entry)) + "\n"

    def _write_scalars(self, epochs: range) -> None:
        if epochs.start == 0:
            self._writers = {}
            for part in ("train", "validation"):
                (self._run.tensorboard / part / _EVENTS).unlink(missing_ok=True)
        if not self._tensorboard:
            return
        for epoch in epochs:
            for name, values in self._checkpoint.history.items():
                tag = f"epoch_{name.removeprefix('val_')}"
                scalar = tf.compat.v1.Summary.Value(tag=tag, simple_value=values[epoch])
                summary = tf.compat.v1.Summary(value=[scalar])
                writer = self._writer("validation" if name.startswith("val_") else "train")
                writer.write(_event(step=epoch, summary=summary))
        for writer in self._writers.values():
            writer.flush()

    def _writer(self, part: str) -> Any:
        if part not in self._writers:
            directory = self._run.tensorboard / part
            directory.mkdir(parents=True, exist_ok=True)
            self._writers[part] = tf.io.TFRecordWriter(str(directory / _EVENTS))
            self._writers[part].write(_event(file_version="brain.Event:2"))
        return self._writers[part]


def _event(**fields: Any) -> bytes:
    return tf.compat.v1.Event(wall_time=time.time(), **fields).SerializeToString()
