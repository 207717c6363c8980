"""Metrics of each epoch: lines of JSON, and scalars for TensorBoard."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from pipeline.training.callback_context import CallbackContext
from pipeline.utils import console, files
from pipeline.utils.errors import reason

# TensorBoard looks for `tfevents` in the name; TensorFlow's own writer adds the host name.
_EVENTS = "events.out.tfevents.scalars"
# TensorFlow's errors for those of `console.FULL`.
_FULL = (tf.errors.ResourceExhaustedError, tf.errors.OutOfRangeError)


def metric_logger(context: CallbackContext) -> keras.callbacks.Callback | None:
    """Writes the metrics of each epoch to `log.jsonl` and for TensorBoard."""
    return MetricLogger(context) if context.is_chief else None


class MetricLogger(keras.callbacks.Callback):
    """One JSON object per epoch in `log.jsonl`: epoch, step, seconds of the run, all metrics.

    The same values are scalars for TensorBoard, named as Keras names them (`epoch_loss`, ...), in
    the runs `train` and `validation`.

    Both show the history of the checkpoint callback, which is called first. They are rewritten when
    a run resumes and after a failed write, so that no epoch is missing or duplicated, wherever a
    process was killed.
    """

    def __init__(self, context: CallbackContext) -> None:
        super().__init__()
        self._run, self._batches = context.run, context.batches
        self._checkpoint, self._tensorboard = context.checkpoint, context.log.tensorboard
        self._writers: dict[str, Any] = {}
        self._is_current = False
        """Whether all earlier epochs have been written."""
        self._reported: set[Path] = set()

    def on_train_begin(self, logs: Any = None) -> None:
        if not self._is_current:
            self.write()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._is_current:
            self.write()
            return
        logged = self._try(self._run.log, lambda: self._append(epoch))
        scalars = self._try(self._run.tensorboard, lambda: self._write_scalars([epoch]))
        self._is_current = logged and scalars

    def write(self) -> None:
        """Writes all epochs so far."""
        epochs = range(self._checkpoint.epoch)
        lines = "".join(map(self._line, epochs))
        # One is written even if the other cannot be.
        logged = self._try(self._run.log, lambda: files.write_text(self._run.log, lines))
        scalars = self._try(self._run.tensorboard, lambda: self._rewrite_scalars(epochs))
        self._is_current = logged and scalars

    def _try(self, path: Path, write: Callable[[], None]) -> bool:
        """Whether the write succeeded; prints the reason once if not.

        `CheckpointCallback` reports a full disk, which it cannot write to either.
        """
        try:
            write()
        except (OSError, tf.errors.OpError) as error:
            full = isinstance(error, _FULL) or getattr(error, "errno", None) in console.FULL
            if not full and path not in self._reported:
                self._reported.add(path)
                why = getattr(error, "strerror", None) or reason(error)
                console.say("warning", f"{path} cannot be written: {why}; training continues")
            return False
        return True

    def _append(self, epoch: int) -> None:
        with self._run.log.open("a", encoding="utf-8") as file:
            file.write(self._line(epoch))

    def _line(self, epoch: int) -> str:
        values = {name: values[epoch] for name, values in self._checkpoint.history.items()}
        step, seconds = self._batches.end_of(epoch), self._checkpoint.seconds[epoch]
        entry = {"epoch": epoch + 1, "step": step, "seconds": seconds, **values}
        return json.dumps(files.strict(entry)) + "\n"

    def _rewrite_scalars(self, epochs: Iterable[int]) -> None:
        self._writers = {}
        for part in ("train", "validation"):
            (self._run.tensorboard / part / _EVENTS).unlink(missing_ok=True)
        self._write_scalars(epochs)

    def _write_scalars(self, epochs: Iterable[int]) -> None:
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
