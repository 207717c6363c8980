"""A source whose images are in `.npy` files, read one at a time, and the other fields in memory."""

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Info, Source
from pipeline.data.split_names import SPLITS


class NpySource(Source):
    """`image` is uint8; an id is the index, with the number of the split above 40 bits.

    Images are read by `pread`: unlike the pages of a memory map, they do not count as memory of
    this process.

    Args:
        images: Split -> memory map of a whole file in C order, uint8 (examples, height, width,
            channels); the last three are the same for all splits.
        columns: Split -> the other fields, (examples, ...).
        class_names: Names of the labels 0, 1, ...
    """

    def __init__(
        self,
        images: Mapping[str, np.memmap],
        columns: Mapping[str, Mapping[str, np.ndarray]],
        class_names: tuple[str, ...],
    ) -> None:
        self._columns: dict[str, dict[str, np.ndarray]] = {}
        for split in images:
            ids = (SPLITS.index(split) << 40) + np.arange(len(images[split]), dtype=np.int64)
            self._columns[split] = {"id": ids, **columns[split]}
        self._shape = images["train"].shape[1:]
        self._files = {split: (Path(m.filename or ""), m.offset) for split, m in images.items()}
        train = self._columns["train"].items()
        self.info = Info(
            splits={split: len(several) for split, several in images.items()},
            fields={
                **{name: tf.TensorSpec(column.shape[1:], column.dtype) for name, column in train},
                "image": tf.TensorSpec(self._shape, tf.uint8),
            },
            class_names=class_names,
        )

    def examples(self, split: str) -> tf.data.Dataset:
        positions = tf.data.Dataset.range(self.info.splits[split])
        return positions.map(self.reader(split), num_parallel_calls=2, deterministic=True)

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        columns = {name: tf.constant(column) for name, column in self._columns[split].items()}

        def read(position: tf.Tensor) -> Example:
            row = {name: tf.gather(column, position) for name, column in columns.items()}
            # TensorFlow's FixedLengthRecordDataset would read all images before this one.
            found = tf.numpy_function(lambda at: self._image(split, int(at)), [position], tf.uint8)
            return {**row, "image": tf.ensure_shape(found, self._shape)}

        return read

    def _image(self, split: str, position: int) -> np.ndarray:
        (path, start), size = self._files[split], math.prod(self._shape)
        with path.open("rb", buffering=0) as file:
            content = os.pread(file.fileno(), size, start + position * size)
        if len(content) != size:
            raise tf.errors.DataLossError(None, None, f"{path} was truncated while it was in use")
        return np.frombuffer(content, np.uint8).reshape(self._shape)

    def columns(self, split: str) -> dict[str, np.ndarray]:
        """From memory."""
        return dict(self._columns[split])

    def fingerprint(self) -> str:
        """Hash of the class names, the fields in memory, and each file's size and time."""
        digest = hashlib.sha256(repr(self.info.class_names).encode())
        for split, (path, start) in self._files.items():
            found = path.stat()
            state = (split, self._shape, start, found.st_size, found.st_ctime_ns)
            digest.update(repr(state).encode())
            for name, column in sorted(self._columns[split].items()):
                digest.update(name.encode() + column.tobytes())
        return digest.hexdigest()

    def location(self, id: int) -> str:
        """Such as `example 17 of test/images.npy`."""
        split, position = divmod(id, 1 << 40)
        path, _ = self._files[SPLITS[split]]
        return f"example {position} of {path.parent.name}/{path.name}"
