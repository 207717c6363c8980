"""TFRecord files: finds records, reads them by number, names damaged ones.

A record is its length (uint64), a checksum of the length (uint32), the bytes, and their
checksum, all little-endian (https://www.tensorflow.org/tutorials/load_data/tfrecord,
"TFRecords format details").
"""

import contextlib
import dataclasses
import functools
import mmap
import os
import re
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Info, Source
from pipeline.data.image_sizes import spread
from pipeline.utils import image_formats
from pipeline.utils.errors import UsageError, reason, suggest
from pipeline.utils.tf_data import READ_ERRORS, with_options

_LENGTH = struct.Struct("<Q").unpack_from
_SHARD = re.compile(r"(.*)-(\d{5,})-of-(\d{5,})")
_STRING = {"output_types": [tf.string], "output_shapes": [tf.TensorShape([])]}
# Field -> common names of its feature, the preferred name first.
_FEATURE_NAMES = {
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
# Field -> types of a feature with numbers.
_NUMBERS = {"image": (), "label": ("int64", "float"), "group": ("int64",)}
Layout = Mapping[str, tuple[str, str]]
"""Maps fields (image, label, optionally group) to the name of the feature, and the
type of its value: int64, bytes, or float for a label.
"""


@dataclasses.dataclass(frozen=True)
class Records:
    """The records of several files, one file after the other."""

    files: tuple[Path, ...]
    offsets: np.ndarray
    """int64 (records,): position of each record in its file."""
    first: np.ndarray
    """int64 (files + 1,): number of each file's first record, then the total."""

    def __len__(self) -> int:
        return len(self.offsets)

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the file of each record and its number there, both int64 (n,)."""
        files = np.searchsorted(self.first, numbers, side="right") - 1
        return files, numbers - self.first[files]

    def location(self, number: int) -> str:
        """Names a record in messages: the file, and the number in the file."""
        (file,), (inside,) = self.locate(np.array([number]))
        return f"{self.files[file]}: record {inside}"

    def read(self, number: tf.Tensor) -> tf.Tensor:
        """Reads a record by its number (int64, scalar) in a graph; string, scalar.

        TensorFlow's reader verifies the checksums; a damaged record raises
        tf.errors.DataLossError.
        """
        first, offsets, names = self._tensors
        file = tf.searchsorted(first, number[None], side="right")
        # The public TFRecordDataset does not take an offset, but its raw operation
        # does.
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=tf.gather(names, file - 1),
            compression_type="",
            buffer_size=tf.constant(0, tf.int64),
            byte_offsets=tf.gather(offsets, number)[None],
        )
        dataset = tf.raw_ops.TakeDataset(
            input_dataset=records, count=tf.constant(1, tf.int64), **_STRING
        )
        (record,) = tf.raw_ops.DatasetToSingleElement(dataset=dataset, **_STRING)
        return record

    @functools.cached_property
    def _tensors(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """`first`, `offsets` and the names of the files."""
        # Captured, not copied into the graph, whose size is limited to 2 GB.
        with tf.init_scope():
            names = [str(path) for path in self.files]
            return (
                tf.constant(self.first),
                tf.constant(self.offsets),
                tf.constant(names),
            )

    def sequence(self, numbers: np.ndarray) -> tf.data.Dataset:
        """Reads these records, int64 (n,), in this order.

        Consecutive records are read at once. A damaged record raises
        tf.errors.DataLossError; `require_sound` names the record.
        """
        files, inside = self.locate(numbers)
        is_gap = (np.diff(numbers) != 1) | (np.diff(files) != 0)
        begins = np.flatnonzero(np.r_[True, is_gap])[: len(numbers)]
        counts = np.diff(np.r_[begins, len(numbers)])
        names = np.array([str(path) for path in self.files])[files[begins]]
        runs = tf.data.Dataset.from_tensor_slices((names, inside[begins], counts))

        def read(name: tf.Tensor, skip: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
            return tf.data.TFRecordDataset(name).skip(skip).take(count)

        return runs.flat_map(read)

    def require_sound(self, numbers: np.ndarray) -> None:
        """Raises UsageError that names the first record with a wrong checksum."""
        records = tf.data.Dataset.from_tensor_slices(numbers).map(
            self.read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        count = 0
        try:
            for _ in records:
                count += 1
        except tf.errors.OpError:
            location = self.location(numbers[count])
            raise UsageError(
                f"{location} is damaged; copy or write the file again"
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
        self._records = records
        self._ids = ids
        self._numbers = numbers
        self._layout = layout
        self._columns: dict[str, dict[str, np.ndarray]] = {}
        self._group_names: dict[str, int] | None = None
        self._readers: dict[str, Callable[[tf.Tensor], Example]] = {}

    def _parse(self, layout: Layout, records: tf.Tensor) -> Example:
        """Parses serialized examples into the fields of a layout."""
        return parse_records(layout, records)

    def _info(self, class_names: tuple[str, ...], image_shape: Any) -> Info:
        fields = {}
        for name in ("id", *self._layout):
            dtype = tf.int64 if name in ("id", "label", "group") else tf.string
            fields[name] = tf.TensorSpec((), dtype)
        return Info(
            splits={split: len(numbers) for split, numbers in self._numbers.items()},
            fields=fields,
            class_names=class_names,
            image_shape=image_shape,
        )

    def _explain(self, split: str) -> None:
        """Raises UsageError that names the first damaged or different record."""
        numbers = self._numbers[split]
        self._records.require_sound(numbers)
        records = self._records.sequence(numbers)
        for number, record in zip(numbers, records, strict=True):
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
        if split not in self._readers:  # all use the same tensors, to save memory
            self._readers[split] = self._reader(split)
        return self._readers[split]

    def _reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        numbers = tf.constant(self._numbers[split])
        ids = tf.constant(self._ids[self._numbers[split]])

        def read(position: tf.Tensor) -> Example:
            record = self._records.read(tf.gather(numbers, position))
            return {"id": tf.gather(ids, position), **self._parse(self._layout, record)}

        return read

    def columns(self, split: str) -> dict[str, np.ndarray]:
        """Reads all records once, without parsing images or texts."""
        if split not in self._columns:
            short = {}
            for name in ("label", "group"):
                if name in self._layout:
                    short[name] = self._layout[name]

            def parse(records: tf.Tensor) -> Example:
                return self._parse(short, records)

            parts = list(self._batches(split, parse))
            columns = {
                name: np.concatenate([part[name] for part in parts]) for name in short
            }
            self._columns[split] = {"id": self._ids[self._numbers[split]], **columns}
        return dict(self._columns[split])

    def split_keys(self, split: str) -> dict[str, np.ndarray]:
        """Reads records only for the groups."""
        if "group" in self._layout:
            return self.columns(split)
        return {"id": self._ids[self._numbers[split]]}

    def group_names(self) -> dict[str, int]:
        """Reads all records of train once, unless the groups are numbers."""
        if self._layout.get("group", ("", "int64"))[1] == "int64":
            return dict(super().group_names())
        if self._group_names is None:
            layout = {"group": self._layout["group"]}
            feature = self._layout["group"][0]

            def parse(records: tf.Tensor) -> Example:
                spec = {feature: tf.io.FixedLenFeature((), tf.string)}
                names = tf.io.parse_example(records, spec)[feature]
                return {"name": names, **parse_records(layout, records)}

            self._group_names = {}
            for batch in self._batches("train", parse):
                names = [n.decode("utf-8", "surrogateescape") for n in batch["name"]]
                pairs = zip(names, batch["group"].tolist(), strict=True)
                self._group_names.update(pairs)
        return self._group_names

    def _batches(
        self, split: str, parse: Callable[[tf.Tensor], Example]
    ) -> Iterator[dict]:
        """Yields parsed batches of 256 records of a split."""
        records = self._records.sequence(self._numbers[split])
        return self._parsed_batches(split, records, parse)

    def _sample(
        self, split: str, limit: int, parse: Callable[[tf.Tensor], Example]
    ) -> Iterator[dict]:
        """Yields parsed batches of at most `limit` evenly spread records of a split."""
        numbers = self._numbers[split]
        chosen = numbers[spread(len(numbers), limit)]
        records = tf.data.Dataset.from_tensor_slices(chosen).map(
            self._records.read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return self._parsed_batches(split, records, parse)

    def _parsed_batches(
        self,
        split: str,
        records: tf.data.Dataset,
        parse: Callable[[tf.Tensor], Example],
    ) -> Iterator[dict]:
        batches = records.batch(256).map(parse, 2)
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
    first = np.cumsum([0, *map(len, offsets)])
    return Records(tuple(files), np.concatenate(offsets), first.astype(np.int64))


def _offsets(path: Path) -> np.ndarray:
    """Finds the position of each record in a file, int64 (records,)."""
    offsets = array("q")
    position = 0
    try:
        size = path.stat().st_size
        if not size:
            return np.zeros(0, np.int64)
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw,
        ):
            while position + 12 <= size:
                offsets.append(position)
                position += _LENGTH(raw, position)[0] + 16
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    if position != size:
        number = _count_intact(path)
        raise UsageError(
            f"{path}: record {number} is damaged or truncated, or the file is"
            " compressed or not a TFRecord file; copy or write it again"
        )
    return np.frombuffer(offsets, np.int64)


def _count_intact(path: Path) -> int:
    """Counts the records before the first damaged one."""
    count = 0
    with contextlib.suppress(tf.errors.OpError):
        for _ in tf.data.TFRecordDataset(str(path)):
            count += 1
    return count


def detect_layout(
    record: bytes, features: Mapping[str, str | None], where: str
) -> Layout:
    """Detects the layout of the first example, a serialized tf.Example.

    `features` maps image, label and group to the name of the feature; None: the first
    common name. Raises UsageError if a feature is missing.
    """
    content = _content(record, where)
    layout = {}
    for field, names in _FEATURE_NAMES.items():
        name = features[field]
        if name is None:
            name = next((name for name in names if name in content), None)
        if name is not None:
            kind, _ = content.get(name, ("", []))
            layout[field] = name, kind if kind in _NUMBERS[field] else "bytes"
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
    """Parses serialized tf.Examples into fields of the same shape, () or (n,).

    Hashes groups that are strings. Raises tf.errors.InvalidArgumentError for an example
    with a different layout.
    """
    types = {"int64": tf.int64, "bytes": tf.string, "float": tf.float32}
    spec = {
        name: tf.io.FixedLenFeature((), types[kind]) for name, kind in layout.values()
    }
    values = tf.io.parse_example(records, spec)
    fields = {field: values[name] for field, (name, _) in layout.items()}
    group = fields.get("group")
    if group is not None and group.dtype == tf.string:
        fields["group"] = tf.strings.to_hash_bucket_fast(group, 2**63 - 1)
    label = fields.get("label")
    if label is not None and label.dtype == tf.float32:
        whole = tf.round(label)
        is_whole = tf.reduce_all(label == whole)
        checks = [tf.debugging.Assert(is_whole, ["a label is not a whole number"])]
        with tf.control_dependencies(checks):
            fields["label"] = tf.cast(whole, tf.int64)
    return fields


def _content(record: bytes, where: str) -> dict[str, tuple[str, list]]:
    """Maps each feature to its type (int64, float or bytes) and its values."""
    try:
        features = tf.train.Example.FromString(record).features.feature
    except Exception:  # google.protobuf's DecodeError; not a direct dependency
        features = {}
    content = {}
    for name, feature in features.items():
        if kind := feature.WhichOneof("kind"):
            values = list(getattr(feature, kind).value)
            content[name] = kind.removesuffix("_list"), values
    if not content:
        raise UsageError(f"{where} is not a tf.Example")
    return content


def is_shard(name: str) -> bool:
    """Whether a name is like `x.tfrecord` or `x-00000-of-00010`."""
    matches = ".tfrec" in name.lower() or _SHARD.fullmatch(name)
    return bool(matches) and not image_formats.is_ignored(name)


def list_files(
    root: Path, is_included: Callable[[str], object] = lambda name: False
) -> list[Path]:
    """Lists the TFRecord files in a directory and its included subdirectories, sorted.

    `is_included` takes the name of a subdirectory. Raises UsageError if there are no
    files.
    """
    paths: list[Path] = []
    try:
        folders = [path for path in sorted(root.iterdir()) if path.is_dir()]
        folders = [path for path in folders if is_included(path.name)]
        for folder in (root, *folders):
            paths += sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{root} cannot be read: {error.strerror}") from None
    paths = [path for path in paths if is_shard(path.name)]
    if not paths:
        raise UsageError(
            f"{root} contains no TFRecord files, such as train-00000-of-00010"
        )
    return paths


def open_files(paths: Sequence[Path]) -> Records:
    """Finds all records of these files.

    Raises UsageError if a file is missing or damaged.
    """
    _require_all(paths)
    return index_files(paths)


def _require_all(paths: Sequence[Path]) -> None:
    present = set(map(str, paths))
    sets = set()
    for path in paths:
        if match := _SHARD.fullmatch(path.name):
            stem, number, count = match.groups()
            sets.add((path.parent, stem, len(number), count))
    for folder, stem, digits, count in sorted(sets):
        for shard in range(int(count)):
            name = f"{stem}-{shard:0{digits}}-of-{count}"
            if os.path.join(folder, name) not in present:
                raise UsageError(f"{folder}: the shard {name} is missing")
