"""Writes summaries for TensorBoard, which shows the name of a folder as that of its
curves.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils.console import say
from pipeline.utils.errors import reason

_SUFFIX = ".pipeline"  # not of the files of a user's callback


def new_writer(folder: Path) -> Any:
    """A writer of `tf.summary` whose file replaces the earlier ones in a folder."""
    for path in _files(folder):
        path.unlink()
    return tf.summary.create_file_writer(str(folder), filename_suffix=_SUFFIX)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*tfevents*{_SUFFIX}"))


def read_scalars(folder: Path) -> Iterator[tuple[int, str, float]]:
    """Yields step, tag and value of the scalars in a folder, up to a damaged event."""
    paths = [str(path) for path in _files(folder)]
    with contextlib.suppress(tf.errors.OpError):
        for record in tf.data.TFRecordDataset(paths).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    yield event.step, value.tag, float(tf.make_ndarray(value.tensor))


def write_results(
    run: RunDirectory, split: str, epoch: int, metrics: Mapping[str, Any]
) -> None:
    """Writes the metrics of a split, and the pictures of the run directory."""
    try:
        with new_writer(run.tensorboard / split).as_default(epoch):
            for name, value in metrics.items():
                if isinstance(value, float):
                    tf.summary.scalar(f"epoch_{name}", value)
            for path in sorted(run.path.glob("*.png")):
                tf.summary.image(path.stem, _image(path))
    except (OSError, tf.errors.OpError) as error:
        say("note", f"{run.tensorboard} cannot be written: {reason(error)}")


def write_pictures(run: RunDirectory) -> None:
    """Writes the pictures of all epochs; raises OSError or `tf.errors.OpError`."""
    with new_writer(run.tensorboard / "pictures").as_default():
        for path in sorted(run.pictures.glob("*-*.png")):
            name, _, epoch = path.stem.rpartition("-")
            tf.summary.image(name, _image(path), int(epoch) - 1)


def _image(path: Path) -> tf.Tensor:
    return tf.io.decode_png(path.read_bytes())[None]


def write_hparams(
    run: RunDirectory, options: Mapping[str, Any], metric: str, value: float
) -> None:
    """Writes options and the metric they led to, for TensorBoard's tab HParams."""
    from tensorboard.plugins.hparams import api

    with new_writer(run.tensorboard / "hparams").as_default(0):
        api.hparams(dict(options), trial_id=run.path.name)
        tf.summary.scalar(f"validation_{metric}", value)
