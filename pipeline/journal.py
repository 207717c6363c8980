"""What a run has measured, epoch by epoch: lines of JSON, and scalars for TensorBoard."""

import json
from typing import Any

import keras
import tensorflow as tf

from pipeline import files
from pipeline.contracts import Batches
from pipeline.run_directory import RunDirectory
from pipeline.saver import Saver


class JsonLog(keras.callbacks.Callback):
    """One JSON object per epoch in `log.jsonl`: epoch, step, seconds of the run, all metrics.

    A resumed run writes the epochs of its checkpoint again: a process that is killed between the
    checkpoint and the log, or after the checkpoint that is taken up, leaves no gap and no double.
    """

    def __init__(self, run: RunDirectory, batches: Batches, saver: Saver) -> None:
        super().__init__()
        self._path, self._batches, self._saver = run.log, batches, saver
        entries = [_entry(batches, saver, epoch) for epoch in range(saver.epoch)]
        files.write_text(self._path, "".join(f"{json.dumps(entry)}\n" for entry in entries))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_entry(self._batches, self._saver, epoch)) + "\n")


def _entry(batches: Batches, saver: Saver, epoch: int) -> dict[str, Any]:
    values = {name: values[epoch] for name, values in saver.history.items()}
    entry = {"epoch": epoch + 1, "step": batches.end_of(epoch), "seconds": saver.seconds[epoch]}
    return files.strict({**entry, **values})


class TensorBoard(keras.callbacks.Callback):
    """Scalars of each epoch, in `train` and, those of the validation split, in `validation`.

    Named `epoch_loss`, ... over the number of the epoch, as those of Keras. A resumed run writes
    them anew, for the reason that `JsonLog` gives.
    """

    def __init__(self, run: RunDirectory, saver: Saver) -> None:
        super().__init__()
        self._folder, self._saver = run.tensorboard, saver
        for old in self._folder.glob("*/events.out.tfevents.*"):
            old.unlink()
        self._writers: dict[str, Any] = {}
        for epoch in range(saver.epoch):
            self._write(epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._write(epoch)

    def _write(self, epoch: int) -> None:
        for name, values in self._saver.history.items():
            part = "validation" if name.startswith("val_") else "train"
            if part not in self._writers:
                self._writers[part] = tf.summary.create_file_writer(str(self._folder / part))
            with self._writers[part].as_default():
                tf.summary.scalar(f"epoch_{name.removeprefix('val_')}", values[epoch], epoch)
        for writer in self._writers.values():
            writer.flush()
