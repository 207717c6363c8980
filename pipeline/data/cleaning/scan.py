"""Decodes every example once, in parallel: size, digest of the pixels, thumbnail, or an error.

Thumbnails are kept in an unnamed temporary file, 3 kB per example; the other columns take about 60
bytes per example in memory.
"""

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Source
from pipeline.data import image_decoding
from pipeline.data.cleaning.near_duplicates import SIDE
from pipeline.runtime import native_logs
from pipeline.utils.errors import UsageError, reason
from pipeline.utils.tf_data import READ_ERRORS, without_autotune

# Two keys of SipHash-2-4 (Aumasson and Bernstein, 2012): two hashes make one of 126 bits.
_KEYS = ((0x70697065, 0x6C696E65), (0x70697865, 0x6C730A00))
_BUCKETS = 2**63 - 1
_BATCH = 256
# Lines that libjpeg and TensorFlow log for damaged files, without naming the file.
_NOISE = (
    "Improper call to JPEG library",
    "Input file read error",
    "JPEG data",
    "Local rendezvous is aborting",
    "[[{{",
)


@dataclasses.dataclass(frozen=True)
class Scan:
    """Measurements, one row per example, in the order of the splits and of the source."""

    splits: tuple[str, ...]
    split: np.ndarray
    """Position in `splits`, int8 (examples,)."""
    id: np.ndarray
    """int64 (examples,)."""
    label: np.ndarray
    """int64 (examples,)."""
    size: np.ndarray
    """Height, width, channels, int32 (examples, 3); zeros if the image cannot be decoded."""
    spread: np.ndarray
    """Largest minus smallest value, of the channel with the widest range, uint8 (examples,)."""
    digest: np.ndarray
    """Hash of the decoded pixels and their shape, int64 (examples, 2)."""
    thumbnail: np.ndarray
    """uint8 (examples, 32, 32, 3), in a file; gray is repeated, the aspect is not kept."""
    errors: Mapping[int, str]
    """Row -> why it cannot be decoded."""

    def __len__(self) -> int:
        return len(self.id)

    def rows(self, ids: Collection[int]) -> np.ndarray:
        """The rows of these ids, in ascending order."""
        return np.flatnonzero(np.isin(self.id, np.fromiter(ids, np.int64)))

    def thumbnails(self, rows: np.ndarray) -> np.ndarray:
        """The thumbnails of these rows (in ascending order), in a file as well."""
        if len(rows) == len(self):
            return self.thumbnail
        some = _in_a_file((len(rows), *self.thumbnail.shape[1:]))
        for start in range(0, len(rows), _BATCH):
            part = slice(start, start + _BATCH)
            some[part] = self.thumbnail[rows[part]]
        return some


def scan(source: Source) -> Scan:
    """Reads and measures all examples of all splits.

    Raises:
        UsageError: The source has no images and labels, or no reader.
    """
    fields = source.info.fields
    if not {"image", "label"} <= set(fields) or fields["image"].dtype not in (tf.uint8, tf.string):
        raise UsageError(
            "only images of uint8 pixels or encoded bytes with labels can be cleaned; this source "
            f"has {', '.join(f'{name} ({spec.dtype.name})' for name, spec in fields.items())}"
        )
    counts = source.info.splits
    total = sum(counts.values())
    columns: dict[str, np.ndarray] = {
        "id": np.zeros(total, np.int64),
        "label": np.zeros(total, np.int64),
        "size": np.zeros((total, 3), np.int32),
        "spread": np.zeros(total, np.uint8),
        "digest": np.zeros((total, 2), np.int64),
        "thumbnail": _in_a_file((total, SIDE, SIDE, 3)),
    }
    errors: dict[int, str] = {}
    start = 0
    for split, count in counts.items():
        parts = {name: column[start : start + count] for name, column in columns.items()}
        with native_logs.held(_NOISE):
            failed = _measure(source, split, count, parts) if count else {}
        errors.update({start + position: why for position, why in failed.items()})
        start += count
    return Scan(
        splits=tuple(counts),
        split=np.repeat(np.arange(len(counts), dtype=np.int8), list(counts.values())),
        errors=errors,
        **columns,
    )


def pictures(source: Source, scan: Scan, ids: Collection[int], side: int) -> dict[int, bytes]:
    """Id -> PNG of at most `side` pixels a side, of the examples that can be decoded."""
    found = {}
    rows = np.setdiff1d(scan.rows(ids), list(scan.errors))
    for number, split in enumerate(scan.splits):
        chosen = rows[scan.split[rows] == number]
        if not len(chosen):
            continue
        start = int(np.argmax(scan.split == number))
        picture = _traced(_picture, *_kind(source), side)
        read = _examples(source, split, chosen - start).map(picture, tf.data.AUTOTUNE)
        for position, png in without_autotune(read.ignore_errors()).as_numpy_iterator():
            found[int(scan.id[start + position])] = png
    return found


def _picture(
    channels: int, side: int, position: tf.Tensor, image: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    image = _rgb(_pixels(channels, image))
    size = tf.shape(image)[:2]
    small = tf.maximum(1, size * side // tf.maximum(side, tf.reduce_max(size)))
    return position, tf.io.encode_png(_resized(image, small))


def _resized(image: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    resized = tf.image.resize(image, size, antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)


@functools.cache
def _traced(function: Callable, image: tf.TensorSpec, *options: int) -> Callable:
    """Traced once for all splits and similar sources: with encoded images it takes a second."""
    traced = tf.function(functools.partial(function, *options))
    return traced.get_concrete_function(tf.TensorSpec((), tf.int64), image)


def _kind(source: Source) -> tuple[tf.TensorSpec, int]:
    """The spec of the images, and the number of channels that encoded ones are decoded to."""
    return source.info.fields["image"], 1 if source.info.image_shape[2] == 1 else 3


def _in_a_file(shape: tuple[int, ...]) -> np.ndarray:
    if not shape[0]:
        return np.empty(shape, np.uint8)
    # The file is deleted at once; the kernel keeps it as long as the array exists.
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.uint8, "w+", shape=shape)


def _pixels(channels: int, image: tf.Tensor) -> tf.Tensor:
    return image_decoding.pixels(image, channels) if image.dtype == tf.string else image


def _rgb(image: tf.Tensor) -> tf.Tensor:
    """Gray is repeated, transparency dropped."""
    return tf.gather(image, [0, 1, 2] if image.shape[-1] in (3, 4) else [0, 0, 0], axis=-1)


def _describe(channels: int, position: tf.Tensor, image: tf.Tensor) -> dict[str, tf.Tensor]:
    image = _pixels(channels, image)
    # Includes type and shape, so that 2x8 and 4x4 differ.
    content = tf.io.serialize_tensor(image)
    digest = [tf.strings.to_hash_bucket_strong(content, _BUCKETS, key) for key in _KEYS]
    rgb = _rgb(image)
    thumbnail = tf.cond(
        tf.reduce_all(tf.shape(rgb)[:2] == SIDE),
        lambda: rgb,
        lambda: _resized(rgb, tf.constant([SIDE, SIDE])),
    )
    return {
        "position": position,
        "size": tf.shape(image),
        "spread": tf.reduce_max(tf.reduce_max(rgb, (0, 1)) - tf.reduce_min(rgb, (0, 1))),
        "digest": tf.stack(digest),
        "thumbnail": tf.ensure_shape(thumbnail, (SIDE, SIDE, 3)),
    }


def _measure(
    source: Source, split: str, count: int, columns: dict[str, np.ndarray]
) -> dict[int, str]:
    """Fills the columns of a split; returns position -> error of the undecodable examples."""
    describe = _traced(_describe, *_kind(source))
    seen = np.zeros(count, bool)
    described = _examples(source, split, np.arange(count)).map(describe, tf.data.AUTOTUNE)
    batches = described.ignore_errors().batch(_BATCH).prefetch(2)
    for batch in without_autotune(batches).as_numpy_iterator():
        places = batch.pop("position")
        seen[places] = True
        for name, values in batch.items():
            columns[name][places] = values
    known = source.columns(split)
    for name in ("id", "label"):
        columns[name][:] = known[name]
    missing = np.flatnonzero(~seen)
    if not len(missing):
        return {}
    # The skipped examples are tried again one by one, for their errors.
    again = _errors(_examples(source, split, missing).map(describe, tf.data.AUTOTUNE))
    reasons = zip(missing.tolist(), again, strict=True)
    return {position: why or "decoding failed once" for position, why in reasons}


def _examples(source: Source, split: str, positions: np.ndarray) -> tf.data.Dataset:
    """(position, image) at these positions of a split."""
    read = source.reader(split)
    if read is None:
        raise UsageError("a source without the method `reader` cannot be cleaned")
    chosen = tf.data.Dataset.from_tensor_slices(positions.astype(np.int64))
    return chosen.map(lambda p: (p, read(p)["image"]), num_parallel_calls=tf.data.AUTOTUNE)


def _errors(dataset: tf.data.Dataset) -> Iterator[str | None]:
    """For each element the error in one line, or None."""
    iterator: Iterator[Any] = iter(without_autotune(dataset))
    while True:
        try:
            next(iterator)
            yield None
        except StopIteration:
            return
        except READ_ERRORS as error:
            yield reason(error)
