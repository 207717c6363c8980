"""Every example decoded once, in parallel: sizes, a digest of its pixels, a thumbnail, or an error.

Only thumbnails are kept, in a temporary file that has no name: 3 kB an example, beside some 60
bytes in memory.
"""

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
import tensorflow as tf

from pipeline.contracts import Source
from pipeline.data import image_decoding
from pipeline.data.cleaning.near_duplicates import SIDE
from pipeline.runtime import native_logs
from pipeline.utils.errors import UsageError, reason
from pipeline.utils.tf_data import READ_ERRORS, without_autotune

# Two keys of SipHash-2-4 (Aumasson and Bernstein, 2012), in place of one hash of 126 bits.
_KEYS = ((0x70697065, 0x6C696E65), (0x70697865, 0x6C730A00))
_BUCKETS = 2**63 - 1
_BATCH = 256
# What libjpeg and TensorFlow say of damaged files without naming one: lines for each.
_NOISE = (
    "Improper call to JPEG library",
    "Input file read error",
    "JPEG data",
    "Local rendezvous is aborting",
    "[[{{",
)


@dataclasses.dataclass(frozen=True)
class Scan:
    """What was measured, one row an example, in the order of the splits and of the source."""

    splits: tuple[str, ...]
    split: np.ndarray
    """Place in `splits`, int8 (examples,)."""
    position: np.ndarray
    """Place in its split, int64 (examples,)."""
    id: np.ndarray
    """int64 (examples,)."""
    label: np.ndarray
    """int64 (examples,)."""
    size: np.ndarray
    """Height, width, channels, int32 (examples, 3); zeros where it cannot be decoded."""
    spread: np.ndarray
    """Largest minus smallest value of the channel where they differ most, uint8 (examples,)."""
    digest: np.ndarray
    """Hash of the decoded pixels and their shape, int64 (examples, 2)."""
    thumbnail: np.ndarray
    """uint8 (examples, 32, 32, 3), in a file; grey is repeated, the aspect is not kept."""
    errors: Mapping[int, str]
    """Row -> why it cannot be decoded."""

    def __len__(self) -> int:
        return len(self.id)

    def rows(self, ids: Collection[int]) -> np.ndarray:
        """Those of some ids, in ascending order."""
        return np.flatnonzero(np.isin(self.id, np.fromiter(ids, np.int64)))

    def thumbnails(self, rows: np.ndarray) -> np.ndarray:
        """Those of some rows, which are in ascending order; again in a file."""
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
        UsageError: The source has no images and labels, or what it reads is no example at all.
    """
    fields = source.info.fields
    if not {"image", "label"} <= set(fields) or fields["image"].dtype not in (tf.uint8, tf.string):
        raise UsageError(
            "only images of uint8 pixels or encoded bytes with labels can be cleaned; this source "
            f"has {', '.join(f'{name} ({spec.dtype.name})' for name, spec in fields.items())}"
        )
    counts = source.info.splits
    total = sum(counts.values())
    if not total:
        raise UsageError("the source holds no examples")
    columns = {
        "id": np.zeros(total, np.int64),
        "label": np.zeros(total, np.int64),
        "size": np.zeros((total, 3), np.int32),
        "spread": np.zeros(total, np.uint8),
        "digest": np.zeros((total, 2), np.int64),
        "thumbnail": _in_a_file((total, SIDE, SIDE, 3)),
    }
    errors: dict[int, str] = {}
    start = 0
    describe = _traced(_described, *_kind(source))
    for split, count in counts.items():
        rows = slice(start, start + count)
        parts = {name: column[rows] for name, column in columns.items()}
        with native_logs.held(_NOISE):
            failed = _measure(source, describe, split, count, parts) if count else {}
        errors.update({start + position: why for position, why in failed.items()})
        start += count
    numbers = np.fromiter(counts.values(), np.int64)
    return Scan(
        splits=tuple(counts),
        split=np.repeat(np.arange(len(counts), dtype=np.int8), numbers),
        position=np.concatenate([np.arange(n) for n in numbers]),
        errors=errors,
        **columns,
    )


def pictures(source: Source, scan: Scan, rows: np.ndarray, side: int) -> dict[int, bytes]:
    """Row -> PNG of at most `side` pixels a side; the thumbnails, where a source has no reader."""
    found = {}
    rows = np.setdiff1d(rows, list(scan.errors))
    for number, split in enumerate(scan.splits):
        mine = rows[scan.split[rows] == number]
        if not len(mine):
            continue
        if source.reader(split) is None:
            found |= {int(row): tf.io.encode_png(scan.thumbnail[row]).numpy() for row in mine}
            continue
        examples = _examples(source, split, scan.position[mine])
        read = examples.map(_traced(_picture, *_kind(source), side), tf.data.AUTOTUNE)
        start = int(np.argmax(scan.split == number))
        found |= {
            start + int(p): png
            for p, png in without_autotune(read.ignore_errors()).as_numpy_iterator()
        }
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
    """Once for all splits and sources of a kind: of encoded images that takes a second."""
    traced = tf.function(functools.partial(function, *options))
    return traced.get_concrete_function(tf.TensorSpec((), tf.int64), image)


def _kind(source: Source) -> tuple[tf.TensorSpec, int]:
    """Of images, and the channels that encoded ones are decoded to."""
    return source.info.fields["image"], 1 if source.info.image_shape[2] == 1 else 3


def _in_a_file(shape: tuple[int, ...]) -> np.ndarray:
    if not shape[0]:
        return np.empty(shape, np.uint8)
    # Deleted at once: the kernel keeps it as long as the array lives.
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.uint8, "w+", shape=shape)


def _pixels(channels: int, image: tf.Tensor) -> tf.Tensor:
    return image_decoding.pixels(image, channels) if image.dtype == tf.string else image


def _rgb(image: tf.Tensor) -> tf.Tensor:
    """Grey three times; transparency is dropped."""
    return tf.gather(image, [0, 1, 2] if image.shape[-1] in (3, 4) else [0, 0, 0], axis=-1)


def _described(channels: int, position: tf.Tensor, image: tf.Tensor) -> dict[str, tf.Tensor]:
    image = _pixels(channels, image)
    # With type and shape, so that 2x8 and 4x4 differ.
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
    source: Source, describe: Callable, split: str, count: int, columns: dict[str, np.ndarray]
) -> dict[int, str]:
    """Fills in the columns of one split; returns position -> error of those that have none."""
    seen = np.zeros(count, bool)
    described = _all_described(source, describe, split, np.arange(count))
    try:
        for batch in without_autotune(described.batch(_BATCH).prefetch(2)).as_numpy_iterator():
            places = batch.pop("position")
            seen[places] = True
            for name, values in batch.items():
                columns[name][places] = values
    except READ_ERRORS as error:
        raise UsageError(f"the split {split!r} cannot be read: {reason(error)}") from None
    known = source.columns(split)
    if len(known["id"]) < count:
        there = len(known["id"])
        raise UsageError(f"the split {split!r} should hold {count} examples, but holds {there}")
    for name in ("id", "label"):
        columns[name][:] = known[name][:count]
    missing = np.flatnonzero(~seen)
    if not len(missing):
        return {}
    # What was passed over without a word is asked one by one.
    again = _one_by_one(_examples(source, split, missing).map(describe, tf.data.AUTOTUNE))
    reasons = zip(missing.tolist(), again, strict=True)
    return {position: why or "decoding failed once" for position, why in reasons}


def _all_described(
    source: Source, describe: Callable, split: str, positions: np.ndarray
) -> tf.data.Dataset:
    """What can be described; what cannot is passed over, if it is an image's fault."""
    examples = _examples(source, split, positions)
    if source.reader(split) is not None:
        return examples.map(describe, tf.data.AUTOTUNE).ignore_errors()
    if source.info.fields["image"].dtype != tf.string:
        return examples.map(describe, tf.data.AUTOTUNE)
    # A torn file of records gives the same error for ever: only decoding may fail.
    return examples.interleave(
        lambda *one: tf.data.Dataset.from_tensors(one).map(describe).ignore_errors(),
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def _examples(source: Source, split: str, positions: np.ndarray) -> tf.data.Dataset:
    """(position, image) of these positions of a split, which are in ascending order."""
    reader = source.reader(split)
    if reader is not None:
        chosen = tf.data.Dataset.from_tensor_slices(positions.astype(np.int64))
        return chosen.map(lambda p: (p, reader(p)["image"]), num_parallel_calls=tf.data.AUTOTUNE)
    mask = np.zeros(int(positions[-1]) + 1, bool)
    mask[positions] = True
    wanted = tf.constant(mask)
    some = source.examples(split).take(len(mask)).map(lambda example: example["image"]).enumerate()
    return some if mask.all() else some.filter(lambda position, _: wanted[position])


def _one_by_one(dataset: tf.data.Dataset) -> Iterator[str | None]:
    """For each element why it cannot be made, in one line, or None."""
    iterator = iter(without_autotune(dataset))
    while True:
        try:
            next(iterator)
            yield None
        except StopIteration:
            return
        except READ_ERRORS as error:
            yield reason(error)
