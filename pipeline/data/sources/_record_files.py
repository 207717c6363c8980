"""TFRecord files: where their records begin, reading one by its number, and naming what is damaged.

A record is its length (uint64), a checksum of that (uint32), the bytes, and their checksum; all
little-endian (https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details").
"""

import dataclasses
import mmap
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from pipeline.utils import crc32c
from pipeline.utils.errors import UsageError

_LENGTH = struct.Struct("<Q").unpack_from
_STRING = {"output_types": [tf.string], "output_shapes": [tf.TensorShape([])]}


@dataclasses.dataclass(frozen=True)
class Records:
    """The records of several files, one file after the other."""

    files: tuple[Path, ...]
    offsets: np.ndarray
    """int64 (records,): place of each record in its file."""
    first: np.ndarray
    """int64 (files + 1,): number of each file's first record; at the end the number of all."""

    def __len__(self) -> int:
        return len(self.offsets)

    def places(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of records, (n,), to (which file, number in that file), both int64 (n,)."""
        files = np.searchsorted(self.first, numbers, side="right") - 1
        return files, numbers - self.first[files]

    def location(self, number: int) -> str:
        """A record as a person calls it."""
        file, inside = self.places(np.int64(number))
        return f"record {inside} of {self.files[file].name}"

    def read(self, number: tf.Tensor) -> tf.Tensor:
        """The bytes of a record by its number (int64, scalar), in a graph; string, scalar.

        TensorFlow's own reader compares the checksums. A record that it cannot read is a
        tf.errors.InvalidArgumentError with the file and the number in that file, from 0.
        """
        with tf.init_scope():  # captured, not copied into the graph, which holds 2 GB at most
            first, offsets = tf.constant(self.first), tf.constant(self.offsets)
            names = tf.constant([str(path) for path in self.files])
        file = tf.searchsorted(first, number[None], side="right")[0] - 1
        name = tf.gather(names, file)
        # The public TFRecordDataset takes no offset, its raw operation does.
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=name[None],
            compression_type="",
            buffer_size=tf.constant(0, tf.int64),
            byte_offsets=tf.gather(offsets, number)[None],
        )
        # What cannot be read becomes an empty text; an empty record is no example either.
        records = tf.raw_ops.IgnoreErrorsDataset(input_dataset=records, **_STRING)
        empty = tf.raw_ops.TensorDataset(
            components=[tf.constant("")], output_shapes=_STRING["output_shapes"]
        )
        records = tf.raw_ops.ConcatenateDataset(
            input_dataset=records, another_dataset=empty, **_STRING
        )
        one = tf.raw_ops.TakeDataset(
            input_dataset=records, count=tf.constant(1, tf.int64), **_STRING
        )
        (record,) = tf.raw_ops.DatasetToSingleElement(dataset=one, **_STRING)
        inside = number - tf.gather(first, file)
        message = ["damaged record in", name, "number", inside]
        with tf.control_dependencies([tf.debugging.Assert(tf.not_equal(record, ""), message)]):
            return tf.identity(record)

    def sequence(self, numbers: np.ndarray) -> tf.data.Dataset:
        """The bytes of these records, int64 (n,), in their order; runs of them are read at once.

        A damaged record ends it with a tf.errors.DataLossError that does not say which; see
        `require_sound`.
        """
        files, inside = self.places(numbers)
        begins = np.flatnonzero(np.r_[True, (np.diff(numbers) != 1) | (np.diff(files) != 0)])
        begins = begins[: len(numbers)]
        counts = np.diff(np.r_[begins, len(numbers)])
        names = np.array([str(path) for path in self.files])[files[begins]]
        runs = tf.data.Dataset.from_tensor_slices((names, inside[begins], counts))
        return runs.flat_map(lambda name, skip, count: _run(name, skip, count))

    def require_sound(self, numbers: np.ndarray) -> None:
        """Raises UsageError naming the first of these records that differs from its checksum."""
        found = tf.data.Dataset.from_tensor_slices(numbers)
        found = found.map(self.read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        at = 0
        try:
            for _ in found:
                at += 1
        except tf.errors.OpError:
            file, inside = self.places(numbers[at])
            raise UsageError(
                f"{self.files[file]}: record {inside} is damaged; copy or write the file again"
            ) from None


def _run(name: tf.Tensor, skip: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(name).skip(skip).take(count)


def index(files: Sequence[Path]) -> Records:
    """Finds all records by walking over their lengths; the bytes themselves are not read.

    Raises:
        UsageError: A file cannot be read, is no TFRecord, or ends inside a record (named by its
            number).
    """
    offsets = [_offsets(path) for path in files]
    first = np.cumsum([0, *(len(places) for places in offsets)])
    return Records(tuple(files), np.concatenate(offsets), first.astype(np.int64))


def _offsets(path: Path) -> np.ndarray:
    """Place of each record, int64 (records,)."""
    try:
        size = path.stat().st_size
        if not size:
            return np.zeros(0, np.int64)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            places, at = [], 0
            while at + 12 <= size:
                places.append(at)
                at += _LENGTH(raw, at)[0] + 16
            _require_lengths(path, raw, np.array(places, np.int64))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    if at != size:
        number = len(places) - (at > size)
        raise UsageError(f"{path} is cut off inside record {number}; copy or write it again")
    return np.array(places, np.int64)


def _require_lengths(path: Path, raw: mmap.mmap, places: np.ndarray) -> None:
    """Compares the checksums of all lengths, 8 steps for all records together."""
    heads = np.frombuffer(b"".join(raw[at : at + 12] for at in places), np.uint8).reshape(-1, 12)
    wrong = np.flatnonzero(crc32c.of_rows(heads[:, :8]) != heads[:, 8:].copy().view("<u4")[:, 0])
    if len(wrong) and wrong[0] == 0:
        raise UsageError(f"{path} is no TFRecord file (compressed ones are not read)")
    if len(wrong):
        raise UsageError(f"{path}: the length of record {wrong[0]} is damaged; copy it again")
