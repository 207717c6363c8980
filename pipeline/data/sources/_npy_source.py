"""A source whose images lie in `.npy` files, read one at a time, and the rest in memory."""

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Info, Source
from pipeline.utils.errors import UsageError

_SPLITS = ("train", "validation", "test")


class Part(NamedTuple):
    """One split."""

    path: Path
    """A `.npy` file in C order: uint8 (examples, height, width, channels)."""
    start: int
    """Place of the first pixel in it, bytes."""
    shape: tuple[int, ...]
    """Height, width and channels."""
    columns: Mapping[str, np.ndarray]
    """The other fields, (examples, ...)."""


class NpySource(Source):
    """`image` is uint8; an id is the position, with the split's number above 40 bits.

    The bytes of an image are read when it is wanted; no page of the file stays in this process, as
    those of a memory map would.

    Args:
        parts: Split -> its files; the images of all are of one shape.
        class_names: Names of the labels 0, 1, ...
    """

    def __init__(self, parts: Mapping[str, Part], class_names: tuple[str, ...]) -> None:
        self._parts = parts
        self._columns = {}
        for split, part in parts.items():
            (count,) = {len(column) for column in part.columns.values()}
            ids = (_SPLITS.index(split) << 40) + np.arange(count, dtype=np.int64)
            self._columns[split] = {"id": ids, **part.columns}
        (shape,) = {part.shape for part in parts.values()}
        short = self._columns["train"].items()
        self.info = Info(
            splits={split: len(columns["id"]) for split, columns in self._columns.items()},
            fields={
                **{name: tf.TensorSpec(column.shape[1:], column.dtype) for name, column in short},
                "image": tf.TensorSpec(shape, tf.uint8),
            },
            class_names=class_names,
        )

    def examples(self, split: str) -> tf.data.Dataset:
        part, columns = self._parts[split], self._columns[split]
        size = math.prod(part.shape)
        rest = part.path.stat().st_size - part.start - size * len(columns["id"])
        if rest < 0:
            raise UsageError(f"{part.path} was cut off while it was in use")
        images = tf.data.FixedLengthRecordDataset(str(part.path), size, part.start, rest)
        rows = tf.data.Dataset.zip(tf.data.Dataset.from_tensor_slices(columns), images)
        return rows.map(lambda row, image: {**row, "image": _image(image, part.shape)})

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        part = self._parts[split]
        columns = {name: tf.constant(column) for name, column in self._columns[split].items()}

        def image(position: np.ndarray) -> np.ndarray:
            return _bytes_of(part, int(position))

        def read(position: tf.Tensor) -> Example:
            row = {name: tf.gather(column, position) for name, column in columns.items()}
            # TensorFlow's own FixedLengthRecordDataset reads all that stands before.
            found = tf.numpy_function(image, [position], tf.uint8)
            return {**row, "image": tf.ensure_shape(found, part.shape)}

        return read

    def columns(self, split: str) -> dict[str, np.ndarray]:
        """From memory."""
        return dict(self._columns[split])

    def fingerprint(self) -> str:
        """Hash of the class names, the fields in memory, and each file's size and time."""
        digest = hashlib.sha256(repr(self.info.class_names).encode())
        for split, part in self._parts.items():
            there = part.path.stat()
            told = (split, part.shape, part.start, there.st_size, there.st_ctime_ns)
            digest.update(repr(told).encode())
            for name, column in sorted(self._columns[split].items()):
                digest.update(name.encode() + column.tobytes())
        return digest.hexdigest()

    def location(self, id: int) -> str:
        """Such as `example 17 of test/images.npy`."""
        split, position = divmod(id, 1 << 40)
        path = self._parts[_SPLITS[split]].path
        return f"example {position} of {path.parent.name}/{path.name}"


def _bytes_of(part: Part, position: int) -> np.ndarray:
    size = math.prod(part.shape)
    with part.path.open("rb", buffering=0) as file:
        content = os.pread(file.fileno(), size, part.start + position * size)
    if len(content) != size:
        raise tf.errors.DataLossError(None, None, f"{part.path} was cut off while it was in use")
    return np.frombuffer(content, np.uint8).reshape(part.shape)


def _image(content: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    return tf.reshape(tf.io.decode_raw(content, tf.uint8), shape)
