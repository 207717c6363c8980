"""TFRecord files: finding records, reading them by number, naming damaged ones; their
features.

A record is its length (uint64), a checksum of the length (uint32), the bytes, and their
checksum, all little-endian (https://www.tensorflow.org/tutorials/load_data/tfrecord,
"TFRecords format details").
"""

import contextlib
import dataclasses
import mmap
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Info, Source
from pipeline.utils import image_formats
from pipeline.utils.errors import UsageError, reason, suggest
from pipeline.utils.tf_data import READ_ERRORS, with_options

_LENGTH = struct.Struct("<Q").unpack_from
_SHARD = re.compile(r"(.*)-(\d{5,})-of-(\d{5,})")
_STRING = {"output_types": [tf.string], "output_shapes": [tf.TensorShape([])]}
# Field -> common names of its feature, the preferred name first.
_KNOWN = {
    "image": (
        "image/encoded",
        "image",
        "image_raw",
        "image_bytes",
        "encoded",
        "jpeg",
        "png",
    ),
    "label": (
        "image/class/label",
        "label",
        "labels",
        "class",
        "class_id",
        "image/class/text",
    ),
    "group": (),
}
Layout = Mapping[str, tuple[str, str]]
"""Maps fields (image, label, optionally group) to (feature, type of its value: int64,
bytes, or float for a label).
"""


@dataclasses.dataclass(frozen=True)
class Records:
    """The records of several files, one file after the other."""

    files: tuple[Path, ...]
    offsets: np.ndarray
    """int64 (records,): position of each record in its file."""
    first: np.ndarray
    """int64 (files + 1,): number of each file's first record, then the number of all
    records.
    """

    def __len__(self) -> int:
        return len(self.offsets)

    def places(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The (index of the file, number in this file) of records, (n,); both int64
        (n,).
        """
        files = np.searchsorted(self.first, numbers, side="right") - 1
        return files, numbers - self.first[files]

    def location(self, number: int) -> str:
        """The file of a record and its number in the file, for messages."""
        (file,), (inside,) = self.places(np.array([number]))
        return f"{self.files[file]}: record {inside}"

    def read(self, number: tf.Tensor) -> tf.Tensor:
        """The bytes of a record by its number (int64, scalar), in a graph; string,
        scalar.

        TensorFlow's reader verifies the checksums; a damaged record is a
        tf.errors.DataLossError.
        """
        with (
            tf.init_scope()
        ):  # captured, not copied into the graph, whose size is limited to 2 GB
            first, offsets = tf.constant(self.first), tf.constant(self.offsets)
            names = tf.constant([str(path) for path in self.files])
        file = tf.searchsorted(first, number[None], side="right")
        # The public TFRecordDataset does not take an offset, but its raw operation
        # does.
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=tf.gather(names, file - 1),
            compression_type="",
            buffer_size=tf.constant(0, tf.int64),
            byte_offsets=tf.gather(offsets, number)[None],
        )
        one = tf.raw_ops.TakeDataset(
            input_dataset=records, count=tf.constant(1, tf.int64), **_STRING
        )
        (record,) = tf.raw_ops.DatasetToSingleElement(dataset=one, **_STRING)
        return record

    def sequence(self, numbers: np.ndarray) -> tf.data.Dataset:
        """The bytes of these records, int64 (n,), in this order.

        Consecutive records are read at once. A damaged record raises a
        tf.errors.DataLossError; `require_sound` names the record.
        """
        files, inside = self.places(numbers)
        begins = np.flatnonzero(
            np.r_[True, (np.diff(numbers) != 1) | (np.diff(files) != 0)]
        )
        begins = begins[: len(numbers)]
        counts = np.diff(np.r_[begins, len(numbers)])
        names = np.array([str(path) for path in self.files])[files[begins]]
        runs = tf.data.Dataset.from_tensor_slices((names, inside[begins], counts))
        return runs.flat_map(
            lambda name, skip, count: (
                tf.data.TFRecordDataset(name).skip(skip).take(count)
            )
        )

    def require_sound(self, numbers: np.ndarray) -> None:
        """Raises UsageError that names the first of these records with a wrong
        checksum.
        """
        found = tf.data.Dataset.from_tensor_slices(numbers)
        found = found.map(
            self.read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        at = 0
        try:
            for _ in found:
                at += 1
        except tf.errors.OpError:
            raise UsageError(
                f"{self.location(numbers[at])} is damaged; copy or write the file again"
            ) from None


class RecordSource(Source):
    """Examples in TFRecord files, read sequentially or by number.

    `image` is a string of shape (), an encoded file; `label` and `group` are int64.
    """

    def __init__(
        self,
        records: Records,
        ids: np.ndarray,
        numbers: dict[str, np.ndarray],
        layout: Layout,
    ) -> None:
        self._records, self._ids, self._numbers = records, ids, numbers
        self._layout = layout
        self._columns: dict[str, dict[str, np.ndarray]] = {}

    def _parse(self, layout: Layout, records: tf.Tensor) -> Example:
        """Parses serialized examples into the fields of a layout, as returned by
        `examples`.
        """
        return parse_records(layout, records)

    def _info(self, class_names: tuple[str, ...], image_shape: Any) -> Info:
        return Info(
            splits={split: len(several) for split, several in self._numbers.items()},
            fields={
                name: tf.TensorSpec((), tf.string if name == "image" else tf.int64)
                for name in ("id", *self._layout)
            },
            class_names=class_names,
            image_shape=image_shape,
        )

    def _explain(self, split: str) -> None:
        """Raises UsageError that names the first record that is damaged or has another
        layout.
        """
        numbers = self._numbers[split]
        self._records.require_sound(numbers)
        for number, record in zip(
            numbers, self._records.sequence(numbers), strict=True
        ):
            where = self._records.location(number)
            require_layout(self._layout, record.numpy(), where)

    def examples(self, split: str) -> tf.data.Dataset:
        numbers = self._numbers[split]
        ids = tf.data.Dataset.from_tensor_slices(self._ids[numbers])
        return tf.data.Dataset.zip(ids, self._records.sequence(numbers)).map(
            lambda id, record: {"id": id, **self._parse(self._layout, record)},
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        numbers = tf.constant(self._numbers[split])
        ids = tf.constant(self._ids[self._numbers[split]])

        def read(position: tf.Tensor) -> Example:
            record = self._records.read(tf.gather(numbers, position))
            return {"id": tf.gather(ids, position), **self._parse(self._layout, record)}

        return read

    def columns(self, split: str) -> dict[str, np.ndarray]:
        """Reads all records once, without parsing images."""
        if split not in self._columns:
            short = {
                name: feature
                for name, feature in self._layout.items()
                if name != "image"
            }
            parts = list(
                self._batches(split, lambda records: self._parse(short, records))
            )
            columns = {
                name: np.concatenate([part[name] for part in parts]) for name in short
            }
            self._columns[split] = {"id": self._ids[self._numbers[split]], **columns}
        return dict(self._columns[split])

    def _batches(
        self, split: str, parse: Callable[[tf.Tensor], Example]
    ) -> Iterator[dict]:
        """What `parse` returns for the records of a split, 256 at a time."""
        batches = self._records.sequence(self._numbers[split]).batch(256).map(parse, 2)
        try:
            yield from with_options(batches.prefetch(2)).as_numpy_iterator()
        except READ_ERRORS as error:
            self._explain(split)
            raise UsageError(
                f"the split {split!r} cannot be read: {reason(error)}"
            ) from None


def index_files(files: Sequence[Path]) -> Records:
    """Finds all records by following their lengths; UsageError if a file is damaged."""
    offsets = [_offsets(path) for path in files]
    first = np.cumsum([0, *(len(places) for places in offsets)])
    return Records(tuple(files), np.concatenate(offsets), first.astype(np.int64))


def _offsets(path: Path) -> np.ndarray:
    """Position of each record, int64 (records,)."""
    places, at = [], 0
    try:
        size = path.stat().st_size
        if not size:
            return np.zeros(0, np.int64)
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw,
        ):
            while at + 12 <= size:
                places.append(at)
                at += _LENGTH(raw, at)[0] + 16
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    if at != size:
        raise UsageError(
            f"{path}: record {_intact(path)} is damaged or truncated, or the file is"
            " compressed or not a TFRecord file; copy or write it again"
        )
    return np.array(places, np.int64)


def _intact(path: Path) -> int:
    """Number of records before the first damaged one."""
    count = 0
    with contextlib.suppress(tf.errors.OpError):
        for _ in tf.data.TFRecordDataset(str(path)):
            count += 1
    return count


def detect_layout(
    record: bytes, wanted: Mapping[str, str | None], where: str
) -> Layout:
    """The layout of the first example, a serialized tf.Example.

    `wanted` maps image, label and group to the name of the feature; None: the first
    common name. Raises UsageError if a feature is missing.
    """
    content = _content(record, where)
    layout = {}
    for field, names in _KNOWN.items():
        name = wanted[field] or next((name for name in names if name in content), None)
        if name is not None:
            numbers = {"image": (), "label": ("int64", "float"), "group": ("int64",)}[
                field
            ]
            kind, _ = content.get(name, ("", []))
            layout[field] = name, kind if kind in numbers else "bytes"
        elif field != "group":
            raise UsageError(
                f"{where}: unknown feature for the {field}; set it with"
                f" --source.{field}; choose from {', '.join(sorted(content)) or 'none'}"
            )
    require_layout(layout, record, where)
    name, _ = layout["image"]
    if not image_formats.is_image(content[name][1][0]):
        raise UsageError(
            f"{where}: the feature {name!r} (--source.image) is not a"
            f" {image_formats.NAMES} file; encode raw pixels with tf.io.encode_png"
        )
    return layout


def require_layout(layout: Layout, record: bytes, where: str) -> None:
    """Raises UsageError unless a serialized tf.Example has this layout."""
    content = _content(record, where)
    for field, (name, expected) in layout.items():
        if name not in content:
            raise UsageError(
                f"{where} has no feature {name!r} (--source.{field});"
                f" {suggest(name, content)}"
            )
        kind, values = content[name]
        if kind != expected or len(values) != 1:
            raise UsageError(
                f"{where}: the feature {name!r} (--source.{field}) must be one value of"
                f" {expected}; got {len(values)} of {kind}"
            )
        if kind == "float" and not values[0].is_integer():
            raise UsageError(
                f"{where}: the feature {name!r} (--source.{field}) must be a whole"
                f" number, the class; got {values[0]:g}"
            )


def parse_records(layout: Layout, records: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses serialized tf.Examples into fields of the same shape, () or (n,); groups
    are hashed.

    Raises tf.errors.InvalidArgumentError for an example with a different layout.
    """
    types = {"int64": tf.int64, "bytes": tf.string, "float": tf.float32}
    spec = {
        name: tf.io.FixedLenFeature((), types[kind]) for name, kind in layout.values()
    }
    values = tf.io.parse_example(records, spec)
    found = {field: values[name] for field, (name, _) in layout.items()}
    if "group" in found and found["group"].dtype == tf.string:
        found["group"] = tf.strings.to_hash_bucket_fast(found["group"], 2**63 - 1)
    if "label" in found and found["label"].dtype == tf.float32:
        whole = tf.round(found["label"])
        is_whole = tf.reduce_all(found["label"] == whole)
        checks = [tf.debugging.Assert(is_whole, ["a label is not a whole number"])]
        with tf.control_dependencies(checks):
            found["label"] = tf.cast(whole, tf.int64)
    return found


def _content(record: bytes, where: str) -> dict[str, tuple[str, list]]:
    """Maps each feature to its type (int64, float or bytes) and its values."""
    try:
        features = tf.train.Example.FromString(record).features.feature
    except (
        Exception
    ):  # DecodeError of google.protobuf, which is not a direct dependency
        features = {}
    kinds = {name: value.WhichOneof("kind") for name, value in features.items()}
    if not any(kinds.values()):
        raise UsageError(f"{where} is not a tf.Example")
    return {
        name: (kind.removesuffix("_list"), list(getattr(features[name], kind).value))
        for name, kind in kinds.items()
        if kind
    }


def is_shard(name: str) -> bool:
    """Whether this is the name of a TFRecord file: `x.tfrecord`, `x-00000-of-00010`,
    ...
    """
    known = ".tfrec" in name.lower() or _SHARD.fullmatch(name)
    return bool(known) and not image_formats.is_ignored(name)


def list_files(
    root: Path, wanted: Callable[[str], object] = lambda name: False
) -> list[Path]:
    """The TFRecord files in a directory and its subdirectories of `wanted` names,
    sorted.

    Raises UsageError if there are none.
    """
    try:
        inside = sorted(
            path for path in root.iterdir() if path.is_dir() and wanted(path.name)
        )
        found = [
            path for folder in (root, *inside) for path in sorted(folder.iterdir())
        ]
    except OSError as error:
        raise UsageError(f"{root} cannot be read: {error.strerror}") from None
    found = [path for path in found if is_shard(path.name)]
    if not found:
        raise UsageError(
            f"{root} contains no TFRecord files, such as train-00000-of-00010"
        )
    return found


def open_files(paths: Sequence[Path]) -> Records:
    """All records of these files.

    Raises UsageError if a file is missing or damaged.
    """
    _require_all(paths)
    return index_files(paths)


def _require_all(paths: Sequence[Path]) -> None:
    present = set(paths)
    for path in paths:
        if found := _SHARD.fullmatch(path.name):
            stem, number, count = found.groups()
            for at in range(int(count)):
                name = f"{stem}-{at:0{len(number)}}-of-{count}"
                if path.with_name(name) not in present:
                    raise UsageError(f"{path.parent}: the shard {name} is missing")
