"""Sources of arrays, in memory or in `.npy` files."""

import functools
import hashlib
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Info, Source
from pipeline.data.split_names import SPLITS
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import is_short, without_autograph

_CHANNELS = (1, 3, 4)  # of gray, RGB and RGBA images


class ArraySource(Source):
    """A source of arrays.

    Unless there is a column `id`, the id of an example is its index, plus the index of
    its split times 2**40.

    Args:
        train: Maps each field of an example (`image`, `label`, ...) to an array of any
            dtype and shape (examples, ...); all have the same length, at least 1. If an
            array is a memory map of a whole file in C order, its rows are read with
            `pread`, because mapped pages would count as memory of this process.
        held_out: The columns of validation and test.
        class_names: Names of the labels 0, 1, ...
        feature_names: Names of the numbers in `features`.
        name: Name of the data for messages, such as a file name.
        group_names: Maps the names of groups to the values of `group`, if these are not
            the names.
    """

    def __init__(
        self,
        train: Mapping[str, np.ndarray],
        held_out: Mapping[str, Mapping[str, np.ndarray]] | None = None,
        *,
        class_names: tuple[str, ...] | None = None,
        feature_names: tuple[str, ...] | None = None,
        name: str = "",
        group_names: Mapping[str, int] | None = None,
    ) -> None:
        self._name = name
        self._group_names = group_names
        self._fingerprint: str | None = None
        # Of each split, while it is in use: a reader has a copy of the arrays.
        self._readers: weakref.WeakValueDictionary[str, Callable] = (
            weakref.WeakValueDictionary()
        )
        self._columns: dict[str, dict[str, np.ndarray]] = {}
        for split, columns in {"train": train, **(held_out or {})}.items():
            (count,) = {len(column) for column in columns.values()}
            ids = (SPLITS.index(split) << 40) + np.arange(count, dtype=np.int64)
            arrays = {
                field: _file_or_array(values) for field, values in columns.items()
            }
            self._columns[split] = {"id": ids, **arrays}
        shapes = {n: (c.shape[1:], c.dtype) for n, c in self._columns["train"].items()}
        for split, columns in self._columns.items():
            for field, column in columns.items():
                if shapes.get(field) != (column.shape[1:], column.dtype):
                    raise UsageError(
                        f"{name}: {field} of {split} has shape {column.shape[1:]} and"
                        f" dtype {column.dtype}, which differs from train"
                    )
        fields = {}
        for field, column in self._columns["train"].items():
            fields[field] = tf.TensorSpec(column.shape[1:], column.dtype)
        splits = {split: len(parts["id"]) for split, parts in self._columns.items()}
        self.info = Info(
            splits=splits,
            fields=fields,
            class_names=class_names,
            feature_names=feature_names,
            notes=channels_notes(self._columns["train"]),
        )

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        read = self._readers.get(split)
        if read is None:
            read = self._readers[split] = self._reader(split)
        return read

    def _reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        columns = self._columns[split]
        dtypes = {name: self.info.fields[name].dtype for name in columns}

        @functools.cache
        def tensor(name: str) -> tf.Tensor:
            with tf.init_scope():
                return tf.constant(columns[name], dtypes[name])

        def value(name: str, position: tf.Tensor) -> tf.Tensor:
            column = columns[name]
            if tf.executing_eagerly():  # few examples: without a copy of the array
                return tf.constant(_row(column, int(position)), dtypes[name])
            if not isinstance(column, np.memmap):
                return tf.gather(tensor(name), position)
            # TensorFlow's FixedLengthRecordDataset would read all previous rows.
            values = tf.numpy_function(
                lambda index: _row(column, int(index)), [position], column.dtype
            )
            return tf.ensure_shape(values, column.shape[1:])

        @without_autograph
        def read(position: tf.Tensor) -> Example:
            return {name: value(name, position) for name in columns}

        return read

    def columns(self, split: str) -> Mapping[str, np.ndarray]:
        short = (name for name, spec in self.info.fields.items() if is_short(spec))
        return {name: self._columns[split][name] for name in short}

    def arrays(self, split: str) -> Mapping[str, np.ndarray] | None:
        """As in `Source`; None with a memory map, or numbers that NumPy has as void or
        in another byte order.
        """
        columns = self._columns[split]
        for column in columns.values():
            is_plain = column.dtype.kind in "biufO" and column.dtype.isnative
            if isinstance(column, np.memmap) or not is_plain:
                return None
        return columns

    def group_names(self) -> Mapping[str, int]:
        return super().group_names() if self._group_names is None else self._group_names

    def fingerprint(self) -> str:
        if self._fingerprint is None:
            self._fingerprint = self._hash()
        return self._fingerprint

    def _hash(self) -> str:
        """Hashes names and arrays; for a memory map, the file's path, size and time."""
        names = (self.info.class_names, self.info.feature_names)
        digest = hashlib.sha256(repr(names).encode())
        for columns in self._columns.values():
            for name, column in sorted(columns.items()):
                digest.update(repr((name, column.dtype.str, column.shape)).encode())
                if isinstance(column, np.memmap):
                    status = Path(column.filename or "").stat()
                    state = (column.filename, status.st_size, status.st_ctime_ns)
                    digest.update(repr(state).encode())
                elif column.dtype == object:  # its memory has only addresses
                    for value in column.ravel():
                        digest.update(repr(value).encode("utf-8", "surrogatepass"))
                else:
                    digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    def location(self, id: int) -> str:
        """Names an example, such as `example 17 of mine.npz`."""
        split, position = divmod(id, 1 << 40)
        name = self._name
        if len(self._columns) > 1:
            name = f"{name}/{SPLITS[split]}"
        return f"example {position} of {name}" if name else f"example {position}"


def _file_or_array(values: np.ndarray) -> np.ndarray:
    """A memory map only if its rows are those of its file; otherwise a plain array.

    A slice and a converted copy of a memory map are memory maps, too.
    """
    if not isinstance(values, np.memmap):
        return values
    root = values
    while isinstance(root.base, np.memmap):
        root = root.base
    has_all_rows = values.nbytes == root.nbytes and values.flags.c_contiguous
    if values.filename is None or not has_all_rows:
        return np.asarray(values)
    return values


def _row(column: np.ndarray, position: int) -> np.ndarray:
    """A row of an array; that of a memory map is read from its file."""
    if not isinstance(column, np.memmap):
        return column[position]
    size = column[0].nbytes
    with open(column.filename or "", "rb", buffering=0) as file:
        content = os.pread(file.fileno(), size, column.offset + position * size)
    return np.frombuffer(content, column.dtype).reshape(column.shape[1:])


def channels_notes(columns: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """A note for each input whose channels seem to be the first axis of the images."""
    notes = []
    for field, images in columns.items():
        if field.rpartition("/")[2] != "image" or images.ndim != 4:
            continue
        height, width, channels = images.shape[1:]
        is_thin = height in _CHANNELS or height < width == channels
        if not is_thin or channels in _CHANNELS or min(width, channels) < 8:
            continue
        notes.append(
            f"images of shape {images.shape} are read as {height} x {width} pixels with"
            f" {channels} channels; if the {height} channels come first, pass"
            " np.moveaxis(images, 1, -1)"
        )
    return tuple(notes)
