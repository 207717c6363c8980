"""Event files for TensorBoard."""

import contextlib
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils.console import say
from pipeline.utils.errors import reason

# TensorBoard looks for `tfevents` in the name; TensorFlow's own writer would add the
# host name.
_NAME = "events.out.tfevents.scalars"
_Summary, _Metadata = tf.compat.v1.Summary, tf.compat.v1.SummaryMetadata


class EventFile:
    """A new event file, in place of an earlier one; the folder's name is that of the
    curves.

    `kept` are events of the earlier one.
    """

    def __init__(self, folder: Path, kept: Iterable[Any] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = tf.io.TFRecordWriter(str(folder / _NAME))
        self._write(file_version="brain.Event:2")
        for event in kept:
            self._writer.write(event.SerializeToString())
        self.flush = self._writer.flush

    def add(self, step: int, tag: str, **value: Any) -> None:
        """Adds a number (`simple_value`), an `image`, or a `tensor` with its
        `metadata`.
        """
        self._write(
            step=step, summary=_Summary(value=[_Summary.Value(tag=tag, **value)])
        )

    def add_text(self, tag: str, text: str) -> None:
        """Adds a text that is shown unchanged."""
        lines = "".join(
            f"    {line}\n" for line in text.splitlines()
        )  # code in Markdown
        about = _Metadata(plugin_data=_Metadata.PluginData(plugin_name="text"))
        self.add(0, tag, tensor=tf.make_tensor_proto(lines), metadata=about)

    def _write(self, **fields: Any) -> None:
        self._writer.write(
            tf.compat.v1.Event(wall_time=time.time(), **fields).SerializeToString()
        )


def read(folder: Path) -> list[Any]:
    """The events in a folder, up to the first damaged one."""
    events: list[Any] = []
    there = [
        str(path) for path in folder.glob(_NAME)
    ]  # TensorFlow warns of a missing file
    with contextlib.suppress(tf.errors.OpError):
        for event in tf.data.TFRecordDataset(there).as_numpy_iterator():
            events.append(tf.compat.v1.Event.FromString(event))
    return events


def write_results(
    run: RunDirectory, split: str, epoch: int, metrics: Mapping[str, Any]
) -> None:
    """Writes the metrics of a split and the pictures in the run directory."""
    try:
        file = EventFile(run.tensorboard / split)
        for name, value in metrics.items():
            if isinstance(value, float):
                file.add(epoch, f"epoch_{name}", simple_value=value)
        for path in sorted(run.path.glob("*.png")):
            png = path.read_bytes()
            width, height = struct.unpack(">II", png[16:24])
            image = _Summary.Image(width=width, height=height, encoded_image_string=png)
            file.add(epoch, path.stem, image=image)
        file.flush()
    except (OSError, tf.errors.OpError) as error:
        say("note", f"{run.tensorboard} cannot be written: {reason(error)}")
