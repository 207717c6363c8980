"""Every example decoded once, in parallel: sizes, a digest of its pixels, a thumbnail, or an error.

Only thumbnails are kept, in a temporary file that has no name: 3 kB an example, beside some 60
bytes in memory.
"""

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Source
from pipeline.duplicates import SIDE
from pipeline.errors import UsageError

# Two keys of SipHash-2-4 (Aumasson and Bernstein, 2012), in place of one hash of 126 bits.
_KEYS = ((0x70697065, 0x6C696E65), (0x70697865, 0x6C730A00))
_BUCKETS = 2**63 - 1
_BATCH = 256


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


def scan(source: Source, limit: int | None = None) -> Scan:
    """Reads and measures all examples of all splits, of each split at most `limit`.

    Raises:
        UsageError: The source has no images or labels, or a record that has not even an id.
    """
    for name in ("image", "label"):
        source.info.field(name)
    counts = {name: min(n, limit or n) for name, n in source.info.splits.items()}
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
    for split, count in counts.items():
        rows = slice(start, start + count)
        parts = {name: column[rows] for name, column in columns.items()}
        failed = _measure(source, split, count, parts)
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


def pictures(source: Source, split: str, positions: np.ndarray, side: int) -> dict[int, bytes]:
    """Position -> PNG of at most `side` pixels a side; where they can be read by position alone."""
    if source.reader(split) is None:
        return {}

    def picture(position: tf.Tensor, example: Example) -> tuple[tf.Tensor, tf.Tensor]:
        image = _rgb(_pixels(example["image"]))
        longest = tf.reduce_max(tf.shape(image)[:2])
        small = tf.image.resize(image, (side, side), preserve_aspect_ratio=True, antialias=True)
        small = tf.cast(tf.clip_by_value(tf.round(small), 0, 255), tf.uint8)
        return position, tf.io.encode_png(tf.cond(longest > side, lambda: small, lambda: image))

    read = _examples(source, split, np.unique(positions)).map(picture).ignore_errors()
    return {int(position): png for position, png in read.as_numpy_iterator()}


def _in_a_file(shape: tuple[int, ...]) -> np.ndarray:
    # Deleted at once: the kernel keeps it as long as the array lives.
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.uint8, "w+", shape=shape)


def _pixels(image: tf.Tensor) -> tf.Tensor:
    """Pixels of an example's raw image: the one place that decodes."""
    if image.dtype != tf.string:
        return image
    image = tf.io.decode_image(image, channels=3, expand_animations=False)
    return tf.ensure_shape(image, (None, None, 3))


def _rgb(image: tf.Tensor) -> tf.Tensor:
    """Grey three times; transparency is dropped."""
    return tf.gather(image, [0, 1, 2] if image.shape[-1] in (3, 4) else [0, 0, 0], axis=-1)


def _described(position: tf.Tensor, example: Example) -> Example:
    image = _pixels(example["image"])
    if image.dtype != tf.uint8:
        raise UsageError(f"images must be uint8 to be cleaned, received {image.dtype.name}")
    # With type and shape, so that 2x8 and 4x4 differ.
    content = tf.io.serialize_tensor(image)
    digest = [tf.strings.to_hash_bucket_strong(content, _BUCKETS, key) for key in _KEYS]
    rgb = _rgb(image)
    if image.shape[:2] != (SIDE, SIDE):
        small = tf.image.resize(rgb, (SIDE, SIDE), antialias=True)
        thumbnail = tf.cast(tf.clip_by_value(tf.round(small), 0, 255), tf.uint8)
    else:
        thumbnail = rgb
    return {
        "position": position,
        "id": example["id"],
        "label": tf.cast(example["label"], tf.int64),
        "size": tf.shape(image),
        "spread": tf.reduce_max(tf.reduce_max(rgb, (0, 1)) - tf.reduce_min(rgb, (0, 1))),
        "digest": tf.stack(digest),
        "thumbnail": tf.ensure_shape(thumbnail, (SIDE, SIDE, 3)),
    }


def _measure(
    source: Source, split: str, count: int, columns: dict[str, np.ndarray]
) -> dict[int, str]:
    """Fills in the columns of one split; returns position -> error of those that have none."""
    every = np.arange(count)
    described = _examples(source, split, every).map(_described, num_parallel_calls=tf.data.AUTOTUNE)
    seen = np.zeros(count, bool)
    # It passes over errors without a word; what is missing then is asked one by one.
    for batch in described.ignore_errors().batch(_BATCH).prefetch(2).as_numpy_iterator():
        places = batch.pop("position")
        seen[places] = True
        for name, values in batch.items():
            columns[name][places] = values
    missing = np.flatnonzero(~seen)
    if not len(missing):
        return {}
    again = _examples(source, split, missing)
    known = again.map(lambda position, e: (e["id"], tf.cast(e["label"], tf.int64)))
    for position, found in zip(missing, _one_by_one(known), strict=False):
        if isinstance(found, str):
            raise UsageError(
                f"the split {split!r} cannot be cleaned: its example {position} (counted from 0) "
                f"cannot even be read: {found}"
            )
        columns["id"][position], columns["label"][position] = (value.numpy() for value in found)
        seen[position] = True
    if not seen.all():
        raise UsageError(
            f"the split {split!r} should hold {count} examples, but {int(seen.sum())} were read"
        )
    failures = _one_by_one(again.map(_described, num_parallel_calls=tf.data.AUTOTUNE))
    reasons = zip(missing.tolist(), failures, strict=True)
    return {p: why if isinstance(why, str) else "decoding failed once" for p, why in reasons}


def _examples(source: Source, split: str, positions: np.ndarray) -> tf.data.Dataset:
    """(position, example) of these positions of a split, which are in ascending order."""
    reader = source.reader(split)
    if reader is not None:
        chosen = tf.data.Dataset.from_tensor_slices(positions.astype(np.int64))
        return chosen.map(lambda p: (p, reader(p)), num_parallel_calls=tf.data.AUTOTUNE)
    last = int(positions[-1]) + 1
    some = source.examples(split).take(last).enumerate()
    if len(positions) == last:
        return some
    mask = np.zeros(last, bool)
    mask[positions] = True
    wanted = tf.constant(mask)
    return some.filter(lambda position, _: wanted[position])


def _one_by_one(dataset: tf.data.Dataset) -> Iterator[object]:
    """The elements; where one cannot be made, why, in one line."""
    iterator = iter(dataset)
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        except tf.errors.OpError as error:
            text = (error.message or type(error).__name__).partition("\n")[0]
            # TensorFlow names the node of the graph first, and the operation last.
            yield text.partition("}} ")[2].partition(" [Op:")[0][:200] or text[:200]
