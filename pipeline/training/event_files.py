"""Reads and writes event files for TensorBoard."""

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
_Summary = tf.compat.v1.Summary
_Metadata = tf.compat.v1.SummaryMetadata


class EventFile:
    """An event file that replaces the earlier one in a folder.

    TensorBoard shows the name of the folder as the name of the curves.

    Args:
        folder: Where to write.
        events: Events of the earlier file to keep.
    """

    def __init__(self, folder: Path, events: Iterable[Any] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = tf.io.TFRecordWriter(str(folder / _NAME))
        self._write(file_version="brain.Event:2")
        for event in events:
            self._writer.write(event.SerializeToString())
        self.flush = self._writer.flush

    def add(self, step: int, tag: str, **value: Any) -> None:
        """Adds a number (`simple_value`), an `image`, or a `tensor` with `metadata`."""
        summary = _Summary(value=[_Summary.Value(tag=tag, **value)])
        self._write(step=step, summary=summary)

    def add_text(self, tag: str, text: str) -> None:
        """Adds a text, which TensorBoard shows unchanged."""
        # A block of code in Markdown.
        block = "".join(f"    {line}\n" for line in text.splitlines())
        metadata = _Metadata(plugin_data=_Metadata.PluginData(plugin_name="text"))
        self.add(0, tag, tensor=tf.make_tensor_proto(block), metadata=metadata)

    def _write(self, **fields: Any) -> None:
        event = tf.compat.v1.Event(wall_time=time.time(), **fields)
        self._writer.write(event.SerializeToString())


def read(folder: Path) -> list[Any]:
    """Reads the events in a folder, up to the first damaged one."""
    events: list[Any] = []
    # Not the path itself: TensorFlow warns of a missing file.
    paths = [str(path) for path in folder.glob(_NAME)]
    with contextlib.suppress(tf.errors.OpError):
        for record in tf.data.TFRecordDataset(paths).as_numpy_iterator():
            events.append(tf.compat.v1.Event.FromString(record))
    return events


def write_results(
    run: RunDirectory, split: str, epoch: int, metrics: Mapping[str, Any]
) -> None:
    """Writes the metrics of a split, and the pictures of the run directory."""
    try:
        file = EventFile(run.tensorboard / split)
        for name, value in metrics.items():
            if isinstance(value, float):
                file.add(epoch, f"epoch_{name}", simple_value=value)
        for path in sorted(run.path.glob("*.png")):
            file.add(epoch, path.stem, image=_image(path))
        file.flush()
    except (OSError, tf.errors.OpError) as error:
        say("note", f"{run.tensorboard} cannot be written: {reason(error)}")


def write_pictures(run: RunDirectory) -> None:
    """Writes the pictures of all epochs; raises OSError or `tf.errors.OpError`."""
    file = EventFile(run.tensorboard / "pictures")
    for path in sorted(run.pictures.glob("*-*.png")):
        name, _, epoch = path.stem.rpartition("-")
        file.add(int(epoch) - 1, name, image=_image(path))
    file.flush()


def _image(path: Path) -> Any:
    png = path.read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    return _Summary.Image(width=width, height=height, encoded_image_string=png)


def write_hparams(
    run: RunDirectory, options: Mapping[str, Any], metric: str, value: float
) -> None:
    """Writes options and the metric they led to, for TensorBoard's tab HParams."""
    from tensorboard.plugins.hparams import plugin_data_pb2

    start = plugin_data_pb2.SessionStartInfo(group_name=run.path.name)
    for name, option in options.items():
        if isinstance(option, str):
            start.hparams[name].string_value = option
        else:
            start.hparams[name].number_value = option
    content = plugin_data_pb2.HParamsPluginData(version=0, session_start_info=start)
    plugin = _Metadata.PluginData(
        plugin_name="hparams", content=content.SerializeToString()
    )
    file = EventFile(run.tensorboard / "hparams")
    null = tf.make_tensor_proto(0.0)
    tag = "_hparams_/session_start_info"
    file.add(0, tag, tensor=null, metadata=_Metadata(plugin_data=plugin))
    file.add(0, f"validation_{metric}", simple_value=value)
    file.flush()
