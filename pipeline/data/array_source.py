"""Sources of arrays, in memory or in `.npy` files, and of image files."""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Info, Source
from pipeline.data.image_sizes import common_shape, spread, used_bits
from pipeline.data.labels import labels_of
from pipeline.data.split_names import SPLITS
from pipeline.utils.errors import UsageError
from pipeline.utils.image_formats import is_deep
from pipeline.utils.tf_data import is_short

_SAMPLE = 1000  # files whose beginning is read
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
        self._columns: dict[str, dict[str, np.ndarray]] = {}
        for split, columns in {"train": train, **(held_out or {})}.items():
            (count,) = {len(column) for column in columns.values()}
            ids = (SPLITS.index(split) << 40) + np.arange(count, dtype=np.int64)
            self._columns[split] = {"id": ids, **columns}
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
            notes=channels_note(self._columns["train"].get("image")),
        )

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        memory_maps = {}
        tensors = {}
        for name, column in self._columns[split].items():
            if isinstance(column, np.memmap):
                memory_maps[name] = column
            else:
                dtype = self.info.fields[name].dtype
                tensors[name] = tf.constant(column, dtype)

        def read(position: tf.Tensor) -> Example:
            row = {
                name: tf.gather(values, position) for name, values in tensors.items()
            }
            for name, column in memory_maps.items():
                # TensorFlow's FixedLengthRecordDataset would read all previous rows.
                values = tf.numpy_function(
                    lambda index, column=column: _row(column, int(index)),
                    [position],
                    column.dtype,
                )
                row[name] = tf.ensure_shape(values, column.shape[1:])
            return row

        return read

    def columns(self, split: str) -> Mapping[str, np.ndarray]:
        short = (name for name, spec in self.info.fields.items() if is_short(spec))
        return {name: self._columns[split][name] for name in short}

    def group_names(self) -> Mapping[str, int]:
        return super().group_names() if self._group_names is None else self._group_names

    def fingerprint(self) -> str:
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


def _row(column: np.memmap, position: int) -> np.ndarray:
    size = column[0].nbytes
    with open(column.filename or "", "rb", buffering=0) as file:
        content = os.pread(file.fileno(), size, column.offset + position * size)
    return np.frombuffer(content, column.dtype).reshape(column.shape[1:])


class ImageFiles(ArraySource):
    """`image` is a string of shape (), the bytes of a file; the other fields are int64.

    `paths` and `columns` have the files, and `id`, `label` and perhaps `group`, of each
    split. Messages and the fingerprint leave out the directory `root`. `notes` are
    lines for the user. `group_names` as for `ArraySource`.
    """

    def __init__(
        self,
        paths: Mapping[str, Sequence[str]],
        columns: Mapping[str, Mapping[str, np.ndarray]],
        class_names: tuple[str, ...] | None,
        *,
        root: str = "",
        notes: tuple[str, ...] = (),
        group_names: Mapping[str, int] | None = None,
    ) -> None:
        self._names: dict[int, str] = {}
        digest = hashlib.sha256(repr(class_names).encode())
        tables = {}
        try:
            for split, files in paths.items():
                names = [path.removeprefix(os.path.join(root, "")) for path in files]
                self._names |= zip(columns[split]["id"].tolist(), names, strict=True)
                # Unlike the modification time, users cannot set the change time.
                states = [(s.st_size, s.st_ctime_ns) for s in map(os.stat, files)]
                text = repr((split, names, states))
                digest.update(text.encode("utf-8", "surrogateescape"))
                for column in columns[split].values():
                    digest.update(column.tobytes())
                images = np.array([os.fsencode(path) for path in files], object)
                tables[split] = {**columns[split], "image": images}
            headers = map(_read_header, itertools.chain(*paths.values()))
            image_shape = common_shape(headers)
            bits, bits_notes = used_bits(_deep_files(paths["train"]))
        except OSError as error:
            raise UsageError(
                f"{error.filename} cannot be read: {error.strerror}"
            ) from None
        self._fingerprint = digest.hexdigest()
        super().__init__(
            tables.pop("train"),
            tables,
            class_names=class_names,
            group_names=group_names,
        )
        notes = (*notes, *bits_notes)
        self.info = dataclasses.replace(
            self.info, image_shape=image_shape, image_bits=bits, notes=notes
        )

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        read_path = super().reader(split)

        def read(position: tf.Tensor) -> Example:
            row = read_path(position)
            return {**row, "image": tf.io.read_file(row["image"])}

        return read

    def fingerprint(self) -> str:
        """Returns a hash of classes, columns, and path, size and time of every file."""
        return self._fingerprint

    def location(self, id: int) -> str:
        """Returns the path of the file."""
        return self._names[id]


def _read_header(path: str) -> bytes:
    """Reads enough for the size, even after a color profile and a thumbnail."""
    with open(path, "rb") as file:
        return file.read(2**18)


def _deep_files(paths: Sequence[str]) -> Iterator[bytes]:
    """Yields the 16-bit PNGs in an evenly spread sample of files."""
    for position in spread(len(paths), _SAMPLE):
        with open(paths[position], "rb") as file:
            head = file.read(32)
            if is_deep(head):
                yield head + file.read()


def examples(
    where: str, x: Any, y: Any, sample_weight: Any = None
) -> dict[str, np.ndarray]:
    """Checks and converts arrays to the fields of examples.

    Args:
        where: The name of the arrays in messages.
        x: Images, uint8, uint16 or float32, (n, height, width[, channels]), or features
            (n, m).
        y: Labels as for `labels_of`, or for features the numbers to predict, (n,) or
            (n, 1).
        sample_weight: At least 0, (n,).

    Returns:
        `image` (n, height, width, channels) and `label`, int64 or strings, which
        `numbered` replaces; or `features` and `target`, float32. And perhaps
        `sample_weight`, float32.
    """
    if isinstance(x, Mapping | list | tuple):
        shapes = {np.shape(part) for part in x}
        if len(shapes) > 1:
            raise UsageError(
                f"{where}: x must be one array; got {len(x)} of different shapes"
            )
    inputs = _array(x, where)
    labels = np.asarray(_array(y, where))  # not a memory map
    if labels.ndim == 2 and labels.shape[1] == 1:  # as in keras.datasets
        labels = labels[:, 0]
    if not len(inputs) or labels.ndim == 0 or len(inputs) != len(labels):
        raise UsageError(
            f"{where}: the lengths of x and y must be equal and at least 1; got shapes "
            f"{inputs.shape} and {labels.shape}"
        )
    if inputs.ndim == 2:
        name = "y (numbers to predict, as x has vectors of features)"
        fields = {
            "target": _floats(labels, name, where),
            "features": _floats(inputs, "x", where),
        }
    else:
        fields = {"label": labels_of(labels, where), "image": images_of(inputs, where)}
    if sample_weight is not None:
        weight = _floats(np.asarray(sample_weight), "weights", where)
        if weight.shape != (len(inputs),) or weight.min() < 0:
            raise UsageError(
                f"{where}: sample_weight must be at least 0, of shape ({len(inputs)},)"
            )
        fields["sample_weight"] = weight
    return fields


def _array(values: Any, where: str) -> np.ndarray:
    try:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
    except ValueError:
        raise UsageError(f"{where}: its examples have different shapes") from None
    return array if array.ndim else array[None]


def images_of(images: np.ndarray, where: str) -> np.ndarray:
    """Checks images, and adds an axis for the channels."""
    shaped = images[..., None] if images.ndim == 3 else images
    if shaped.dtype == np.float64:
        shaped = shaped.astype(np.float32)
    has_dtype = shaped.dtype in (np.uint8, np.uint16, np.float32)
    if shaped.ndim != 4 or not has_dtype or not shaped.size:
        raise UsageError(
            f"{where}: images must be uint8, uint16 or float32 of shape (n, height,"
            f" width[, channels]); got {images.dtype} of shape {images.shape}"
        )
    if shaped.dtype == np.float32 and not np.isfinite(shaped).all():
        raise UsageError(f"{where}: images must be finite; got NaN or infinity")
    return shaped if shaped.flags.c_contiguous else np.ascontiguousarray(shaped)


def channels_note(images: np.ndarray | None) -> tuple[str, ...]:
    """Returns a note if the channels seem to be the first axis of the images."""
    if images is None or images.ndim != 4:
        return ()
    height, width, channels = images.shape[1:]
    is_thin = height in _CHANNELS or height < width == channels
    if not is_thin or channels in _CHANNELS or min(width, channels) < 8:
        return ()
    return (
        (
            f"images of shape {images.shape} are read as {height} x {width} pixels with"
            f" {channels} channels; if the {height} channels come first, give"
            " np.moveaxis(images, 1, -1)"
        ),
    )


def _floats(values: np.ndarray, name: str, where: str) -> np.ndarray:
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise UsageError(f"{where}: {name} must be finite numbers; got {values.dtype}")
    return values.astype(np.float32)
