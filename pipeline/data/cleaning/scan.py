"""Decodes every example once, in parallel: size, digest of the pixels, thumbnail, or an
error.
"""

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
    """Measurements, one row per example, in the order of the splits and of
    the source.
    """

    splits: tuple[str, ...]
    split: np.ndarray  # position in `splits`, int8 (examples,)
    id: np.ndarray  # int64 (examples,)
    label: np.ndarray  # int64 (examples,)
    size: np.ndarray
    """Height, width, channels, int32 (examples, 3); zeros if the image cannot be
    decoded.
    """
    spread: np.ndarray
    """Largest minus smallest value, of the channel with the widest range, uint8
    (examples,).
    """
    digest: (
        np.ndarray
    )  # hash of the decoded pixels and their shape, int64 (examples, 2)
    thumbnail: np.ndarray
    """uint8 (examples, 32, 32, 3); gray is repeated, the aspect is not kept."""
    errors: Mapping[int, str]  # row -> why it cannot be decoded

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
    if not {"image", "label"} <= set(fields) or fields["image"].dtype not in (
        tf.uint8,
        tf.string,
    ):
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
        parts = {
            name: column[start : start + count] for name, column in columns.items()
        }
        with native_logs.filter_stderr(_NOISE):
            failed = _measure(source, split, count, parts) if count else {}
        errors.update({start + position: why for position, why in failed.items()})
        start += count
    return Scan(
        splits=tuple(counts),
        split=np.repeat(np.arange(len(counts), dtype=np.int8), list(counts.values())),
        errors=errors,
        **columns,
    )


def pictures(source: Source, scan: Scan) -> Callable[[int], str | None]:
    """Id -> image as a data URI; None if the example cannot be decoded."""
    readers = {split: source.reader(split) for split in scan.splits}

    def picture(id: int) -> str | None:
        row = scan.row_of[id]
        if row in scan.errors:
            return None
        first = np.argmax(scan.split == scan.split[row])
        read = readers[scan.splits[scan.split[row]]]
        try:
            image = read(tf.constant(row - first, tf.int64))["image"]
            return html_pages.image(_pixels(_format(source), image).numpy())
        except READ_ERRORS:
            return None

    return picture


@functools.cache
def _traced(image: tf.TensorSpec, form: tuple[int, int]) -> Callable:
    """`_describe`, traced once for all splits: with encoded images it
    takes a second.
    """
    traced = tf.function(functools.partial(_describe, form))
    return traced.get_concrete_function(tf.TensorSpec((), tf.int64), image)


def _format(source: Source) -> tuple[int, int]:
    """The channels that encoded images are decoded to, and the bits that 16-bit PNGs
    use.
    """
    return 1 if source.info.image_shape[2] == 1 else 3, source.info.image_bits


def _pixels(form: tuple[int, int], image: tf.Tensor) -> tf.Tensor:
    return image_decoding.pixels(image, *form) if image.dtype == tf.string else image


def _describe(
    form: tuple[int, int], position: tf.Tensor, image: tf.Tensor
) -> dict[str, tf.Tensor]:
    image = _pixels(form, image)
    # Includes type and shape, so that 2x8 and 4x4 differ.
    content = tf.io.serialize_tensor(image)
    digest = [tf.strings.to_hash_bucket_strong(content, _BUCKETS, key) for key in _KEYS]
    # Gray is repeated, transparency dropped.
    rgb = tf.gather(
        image, [0, 1, 2] if image.shape[-1] in (3, 4) else [0, 0, 0], axis=-1
    )
    thumbnail = tf.cond(
        tf.reduce_all(tf.shape(rgb)[:2] == SIDE),
        lambda: rgb,
        lambda: image_decoding.resize(rgb, SIDE, SIDE),
    )
    return {
        "position": position,
        "size": tf.shape(image),
        "spread": tf.reduce_max(
            tf.reduce_max(rgb, (0, 1)) - tf.reduce_min(rgb, (0, 1))
        ),
        "digest": tf.stack(digest),
        "thumbnail": tf.ensure_shape(thumbnail, (SIDE, SIDE, 3)),
    }


def _measure(
    source: Source, split: str, count: int, columns: dict[str, np.ndarray]
) -> dict[int, str]:
    """Fills the columns of a split; returns position -> error of the undecodable
    examples.
    """
    read = source.reader(split)
    describe = _traced(source.info.fields["image"], _format(source))
    seen, done = np.zeros(count, bool), 0
    examples = tf.data.Dataset.range(count).map(
        lambda position: describe(position, read(position)["image"]), tf.data.AUTOTUNE
    )
    batches = examples.ignore_errors().batch(_BATCH).prefetch(2)
    for batch in with_options(batches).as_numpy_iterator():
        places = batch.pop("position")
        seen[places] = True
        for name, values in batch.items():
            columns[name][places] = values
        done += len(places)
        progress_bar.count("scanning", done, count)
    known = source.columns(split)
    for name in ("id", "label"):
        columns[name][:] = known[name]
    errors = {}
    for position in np.flatnonzero(~seen):  # again, for the error
        at = tf.constant(position, tf.int64)
        try:
            describe(at, read(at)["image"])
            errors[int(position)] = "decoding failed once"
        except READ_ERRORS as error:
            errors[int(position)] = reason(error)
    return errors
