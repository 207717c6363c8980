"""What a run has measured, epoch by epoch: lines of JSON, and scalars for TensorBoard."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from pipeline.contracts import Batches
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training.callback_context import CallbackContext
from pipeline.utils import console, files
from pipeline.utils.errors import reason

# TensorBoard asks for `tfevents` in the name; TensorFlow's own writer adds the host's.
_EVENTS = "events.out.tfevents.scalars"
# TensorFlow's for `console.FULL`.
_FULL = (tf.errors.ResourceExhaustedError, tf.errors.OutOfRangeError)


def metric_logger(context: CallbackContext) -> keras.callbacks.Callback | None:
    """Writes the metrics of each epoch to `log.jsonl` and for TensorBoard."""
    if not context.is_chief:
        return None
    tensorboard = context.log.tensorboard
    return MetricLogger(context.run, context.batches, context.checkpoint, tensorboard)


class MetricLogger(keras.callbacks.Callback):
    """One JSON object per epoch in `log.jsonl`: epoch, step, seconds of the run, all metrics.

    And the same as scalars of TensorBoard, `epoch_loss`, ... over the number of the epoch as Keras
    names them, in `train` and, those of the validation split, in `validation`.

    Both say what the newest checkpoint knows: they are written anew when a run is taken up, and
    when a write has failed, so that no epoch is missing or there twice wherever a process was
    killed.

    Args:
        run: Where to.
        batches: Of training.
        saver: The `CheckpointCallback`; its history is what is written, so it is called before.
        tensorboard: Whether scalars are wanted.
    """

    def __init__(
        self,
        run: RunDirectory,
        batches: Batches,
        saver: keras.callbacks.Callback,
        tensorboard: bool = True,
    ) -> None:
        super().__init__()
        self._run, self._batches, self._saver = run, batches, saver
        self._tensorboard = tensorboard
        self._writers: dict[str, Any] = {}
        self._whole = False
        """Whether all epochs before this one have been written."""
        self._told: set[Path] = set()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not self._whole:
            self.write()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._whole:
            self.write()
            return
        logged = self._tried(self._run.log, lambda: self._append(epoch))
        self._whole = self._tried(self._run.tensorboard, lambda: self._scalars([epoch])) and logged

    def write(self) -> None:
        """All epochs so far."""
        epochs = range(self._saver.epoch)
        lines = "".join(map(self._line, epochs))
        # Each for itself: nobody misses the log because TensorBoard's files cannot be written.
        logged = self._tried(self._run.log, lambda: files.write_text(self._run.log, lines))
        self._whole = self._tried(self._run.tensorboard, lambda: self._anew(epochs)) and logged

    def _tried(self, what: Path, write: Callable[[], None]) -> bool:
        """Whether it could be written; says once what is in the way, but for a full disk."""
        try:
            write()
        except (OSError, tf.errors.OpError) as error:
            # A full disk is told of by `CheckpointCallback`, which cannot write then either.
            full = isinstance(error, _FULL) or getattr(error, "errno", None) in console.FULL
            if not full and what not in self._told:
                self._told.add(what)
                why = getattr(error, "strerror", None) or reason(error)
                print(f"warning    {what} cannot be written: {why}; training goes on", flush=True)
            return False
        return True

    def _append(self, epoch: int) -> None:
        with self._run.log.open("a", encoding="utf-8") as file:
            file.write(self._line(epoch))

    def _anew(self, epochs: Iterable[int]) -> None:
        self._writers = {}
        for part in ("train", "validation"):
            (self._run.tensorboard / part / _EVENTS).unlink(missing_ok=True)
        self._scalars(epochs)

    def _line(self, epoch: int) -> str:
        values = {name: values[epoch] for name, values in self._saver.history.items()}
        step, seconds = self._batches.end_of(epoch), self._saver.seconds[epoch]
        entry = {"epoch": epoch + 1, "step": step, "seconds": seconds, **values}
        return json.dumps(files.strict(entry)) + "\n"

    def _scalars(self, epochs: Iterable[int]) -> None:
        if not self._tensorboard:
            return
        for epoch in epochs:
            for name, values in self._saver.history.items():
                part = "validation" if name.startswith("val_") else "train"
                if part not in self._writers:
                    folder = self._run.tensorboard / part
                    folder.mkdir(parents=True, exist_ok=True)
                    self._writers[part] = tf.io.TFRecordWriter(str(folder / _EVENTS))
                    self._writers[part].write(_event(file_version="brain.Event:2"))
                tag = f"epoch_{name.removeprefix('val_')}"
                scalar = tf.compat.v1.Summary.Value(tag=tag, simple_value=values[epoch])
                summary = tf.compat.v1.Summary(value=[scalar])
                self._writers[part].write(_event(step=epoch, summary=summary))
        for writer in self._writers.values():
            writer.flush()


def _event(**fields: Any) -> bytes:
    return tf.compat.v1.Event(wall_time=time.time(), **fields).SerializeToString()
