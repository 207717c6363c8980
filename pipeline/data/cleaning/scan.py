"""Measures all images of a source: their sizes, digests, thumbnails and errors."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from pipeline.contracts import Source
from pipeline.data import image_decoding
from pipeline.data.cleaning.near_duplicates import SIDE
from pipeline.runtime import native_logs
from pipeline.utils import html_pages, progress_bar
from pipeline.utils.errors import UsageError, reason
from pipeline.utils.tf_data import READ_ERRORS, with_options

# Two keys of SipHash-2-4 (Aumasson and Bernstein, 2012): two hashes make one of 126
# bits.
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
    """Measurements with a row for each example, in the order of splits and source."""

    splits: tuple[str, ...]
    split: np.ndarray
    """Position in `splits`, int8 (examples,)."""
    id: np.ndarray
    """int64 (examples,)."""
    label: np.ndarray
    """int64 (examples,)."""
    size: np.ndarray
    """Height, width, channels, int32 (examples, 3); zeros if decoding failed."""
    spread: np.ndarray
    """The widest range of values of a channel, uint8 (examples,)."""
    digest: np.ndarray
    """Hash of the decoded pixels and their shape, int64 (examples, 2)."""
    thumbnail: np.ndarray
    """uint8 (examples, 32, 32, 3); gray is repeated, the aspect ratio is not kept."""
    errors: Mapping[int, str]
    """Maps a row to the reason why it cannot be decoded."""

    def __len__(self) -> int:
        return len(self.id)

    @functools.cached_property
    def row_of(self) -> dict[int, int]:
        """Id -> row."""
        return {id: row for row, id in enumerate(self.id.tolist())}


def scan(source: Source) -> Scan:
    """Reads and measures all examples of all splits.

    Raises:
        UsageError: The source has no images and labels.
    """
    fields = source.info.fields
    has_images = {"image", "label"} <= set(fields)
    if not has_images or fields["image"].dtype not in (tf.uint8, tf.string):
        names = [f"{name} ({spec.dtype.name})" for name, spec in fields.items()]
        raise UsageError(
            "only images of uint8 pixels or encoded bytes with labels can be cleaned; "
            f"this source has {', '.join(names)}"
        )
    counts = source.info.splits
    total = sum(counts.values())
    progress_bar.stage("scanning", f"{total:,} examples")
    columns: dict[str, np.ndarray] = {
        "id": np.zeros(total, np.int64),
        "label": np.zeros(total, np.int64),
        "size": np.zeros((total, 3), np.int32),
        "spread": np.zeros(total, np.uint8),
        "digest": np.zeros((total, 2), np.int64),
        "thumbnail": np.zeros((total, SIDE, SIDE, 3), np.uint8),
    }
    errors: dict[int, str] = {}
    start = 0
    for split, count in counts.items():
        end = start + count
        split_columns = {name: column[start:end] for name, column in columns.items()}
        with native_logs.filter_stderr(_NOISE):
            split_errors = _measure(source, split, count, split_columns)
        for position, error in split_errors.items():
            errors[start + position] = error
        start = end
    return Scan(
        splits=tuple(counts),
        split=np.repeat(np.arange(len(counts), dtype=np.int8), list(counts.values())),
        errors=errors,
        **columns,
    )


def pictures(source: Source, scan: Scan) -> Callable[[int], str | None]:
    """A function id -> image as a data URI, or None if it cannot be decoded."""
    readers = {split: source.reader(split) for split in scan.splits}

    def picture(id: int) -> str | None:
        row = scan.row_of[id]
        if row in scan.errors:
            return None
        first_row = np.argmax(scan.split == scan.split[row])
        read = readers[scan.splits[scan.split[row]]]
        try:
            image = read(tf.constant(row - first_row, tf.int64))["image"]
            return html_pages.image(_pixels(image, *_format(source)).numpy())
        except READ_ERRORS:
            return None

    return picture


@functools.cache
def _describe_function(image: tf.TensorSpec, channels: int, bits: int) -> Callable:
    """`_describe`, traced once: with encoded images, this takes a second."""
    describe = functools.partial(_describe, channels=channels, bits=bits)
    position = tf.TensorSpec((), tf.int64)
    return tf.function(describe).get_concrete_function(position, image)


def _format(source: Source) -> tuple[int, int]:
    """The channels to decode images to, and the bits that 16-bit PNGs use."""
    channels = 1 if source.info.image_shape[2] == 1 else 3
    return channels, source.info.image_bits


def _pixels(image: tf.Tensor, channels: int, bits: int) -> tf.Tensor:
    if image.dtype != tf.string:
        return image
    return image_decoding.pixels(image, channels, bits)


def _describe(
    position: tf.Tensor, image: tf.Tensor, channels: int, bits: int
) -> dict[str, tf.Tensor]:
    image = _pixels(image, channels, bits)
    # Includes type and shape, so that 2x8 and 4x4 differ.
    content = tf.io.serialize_tensor(image)
    digest = [tf.strings.to_hash_bucket_strong(content, _BUCKETS, key) for key in _KEYS]
    # Gray is repeated, transparency dropped.
    channel_order = [0, 1, 2] if image.shape[-1] in (3, 4) else [0, 0, 0]
    rgb = tf.gather(image, channel_order, axis=-1)
    thumbnail = tf.cond(
        tf.reduce_all(tf.shape(rgb)[:2] == SIDE),
        lambda: rgb,
        lambda: image_decoding.resize(rgb, SIDE, SIDE),
    )
    ranges = tf.reduce_max(rgb, (0, 1)) - tf.reduce_min(rgb, (0, 1))
    return {
        "position": position,
        "size": tf.shape(image),
        "spread": tf.reduce_max(ranges),
        "digest": tf.stack(digest),
        "thumbnail": tf.ensure_shape(thumbnail, (SIDE, SIDE, 3)),
    }


def _measure(
    source: Source, split: str, count: int, columns: dict[str, np.ndarray]
) -> dict[int, str]:
    """Fills the columns of a split; returns the errors of its examples by position."""
    if not count:
        return {}
    read = source.reader(split)
    describe = _describe_function(source.info.fields["image"], *_format(source))
    is_decoded = np.zeros(count, bool)
    done = 0
    examples = tf.data.Dataset.range(count).map(
        lambda position: describe(position, read(position)["image"]), tf.data.AUTOTUNE
    )
    batches = examples.ignore_errors().batch(_BATCH).prefetch(2)
    for batch in with_options(batches).as_numpy_iterator():
        positions = batch.pop("position")
        is_decoded[positions] = True
        for name, values in batch.items():
            columns[name][positions] = values
        done += len(positions)
        progress_bar.count("scanning", done, count)
    short_columns = source.columns(split)
    for name in ("id", "label"):
        columns[name][:] = short_columns[name]
    errors = {}
    for position in np.flatnonzero(~is_decoded):  # again, for the error
        scalar = tf.constant(position, tf.int64)
        try:
            describe(scalar, read(scalar)["image"])
            errors[int(position)] = "decoding failed once"
        except READ_ERRORS as error:
            errors[int(position)] = reason(error)
    return errors
