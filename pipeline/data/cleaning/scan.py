"""Measures all examples of a source: their digests, sketches and errors, and of images
also sizes.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Similarity, Source
from pipeline.data import image_decoding
from pipeline.runtime import native_logs
from pipeline.utils import html_pages, progress_bar
from pipeline.utils.errors import reason
from pipeline.utils.tf_data import READ_ERRORS, is_short, with_options

TARGETS = ("label", "labels", "target", "mask")
"""Fields of a raw example that are to be predicted."""
_NOT_INPUTS = frozenset({"id", "group", "sample_weight", "split", *TARGETS})

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
    """Measurements with a row for each example, in the order of splits and source.

    `size` and `spread` are empty if the examples are not images.
    """

    splits: tuple[str, ...]
    split: np.ndarray
    """Position in `splits`, int8 (examples,)."""
    id: np.ndarray
    """int64 (examples,)."""
    label: np.ndarray
    """The class; otherwise, a number that is the same for equal targets, int64
    (examples,).
    """
    digest: np.ndarray
    """Hash of the decoded pixels and their shape, or of the fields of the input, int64
    (examples, 2).
    """
    errors: Mapping[int, str]
    """Maps a row to the reason why it cannot be decoded."""
    has_images: bool
    target: str
    """Name of the field that is to be predicted; empty: there is none."""
    truth: np.ndarray | None
    """The target if it is short, (examples, ...)."""
    not_finite: Mapping[int, str]
    """Maps a row to the name of its first number that is not finite in float32."""
    size: np.ndarray
    """Height, width, channels, int32 (examples, 3); zeros if decoding failed."""
    spread: np.ndarray
    """The widest range of values of a channel, uint8 (examples,)."""
    sketch: np.ndarray
    """Sketches computed by `similarity`, (examples, ...); (examples, 0) without it."""
    similarity: Similarity | None = None

    def __len__(self) -> int:
        return len(self.id)

    @functools.cached_property
    def row_of(self) -> dict[int, int]:
        """Id -> row."""
        return {id: row for row, id in enumerate(self.id.tolist())}


def has_images(source: Source) -> bool:
    """Whether the examples are images of uint8 pixels or encoded bytes."""
    spec = source.info.fields.get("image")
    return spec is not None and spec.dtype in (tf.uint8, tf.string)


def needs_decoding(source: Source) -> bool:
    """Whether `scan` needs `Task.decode` to find what is damaged: masks, and files that
    are not images.
    """
    fields = source.info.fields
    if has_images(source):
        return "mask" in fields
    return "mask" in fields or any(s.dtype == tf.string for s in fields.values())


def scan(
    source: Source,
    decode: Callable[[Example], Example] | None = None,
    target: str | None = None,
    similarity: Similarity | None = None,
) -> Scan:
    """Reads and measures all examples of all splits.

    Args:
        source: The source.
        decode: `Task.decode`, if `needs_decoding`.
        target: The field that is to be predicted; None: the first of `TARGETS` that the
            source has.
        similarity: How near duplicates are found; None: they are not.
    """
    counts = source.info.splits
    total = sum(counts.values())
    progress_bar.stage("scanning", f"{total:,} examples")
    names = [name for name in TARGETS if name in source.info.fields]
    target = target or next(iter(names), "")
    measures = _Measures(source, decode, target, similarity)
    columns = measures.new_columns(total)
    truths: list[np.ndarray] = []
    errors: dict[int, str] = {}
    start = 0
    for split, count in counts.items():
        end = start + count
        split_columns = {name: column[start:end] for name, column in columns.items()}
        with native_logs.filter_stderr(_NOISE):
            split_errors = measures.fill(split, count, split_columns)
        for position, error in split_errors.items():
            errors[start + position] = error
        short_columns = source.columns(split)
        split_columns["id"][:] = short_columns["id"]
        if target in short_columns:
            truths.append(short_columns[target])
        start = end
    truth = np.concatenate(truths) if truths else None
    if truth is not None:
        is_class = target == "label"
        columns["label"] = truth.astype(np.int64) if is_class else _number(truth)
    return Scan(
        splits=tuple(counts),
        split=np.repeat(np.arange(len(counts), dtype=np.int8), list(counts.values())),
        errors=errors,
        has_images=measures.has_images,
        target=target,
        truth=truth,
        not_finite=measures.not_finite(columns.pop("not_finite")),
        similarity=similarity,
        **columns,
    )


def _number(truth: np.ndarray) -> np.ndarray:
    """Numbers the different rows, int64 (examples,)."""
    rows = np.ascontiguousarray(truth).reshape(len(truth), -1)
    keys = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))
    return np.unique(keys[:, 0], return_inverse=True)[1].astype(np.int64)


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
def _describe_function(
    image: tf.TensorSpec,
    channels: int,
    bits: int,
    sketch: Callable[[Example], tf.Tensor] | None,
) -> Callable:
    """`_describe`, traced once: with encoded images, this takes a second."""
    describe = functools.partial(_describe, channels=channels, bits=bits, sketch=sketch)
    return tf.function(describe).get_concrete_function(image)


def _format(source: Source) -> tuple[int, int]:
    """The channels to decode images to, and the bits that 16-bit PNGs use."""
    shape = source.info.exact_image_shape(channels_only=True)
    channels = 1 if shape[2] == 1 else 3
    return channels, source.info.image_bits


def _pixels(image: tf.Tensor, channels: int, bits: int) -> tf.Tensor:
    if image.dtype != tf.string:
        return image
    return image_decoding.pixels(image, channels, bits)


def _digest(content: tf.Tensor) -> tf.Tensor:
    digest = [tf.strings.to_hash_bucket_strong(content, _BUCKETS, key) for key in _KEYS]
    return tf.stack(digest)


def _describe(
    image: tf.Tensor,
    channels: int,
    bits: int,
    sketch: Callable[[Example], tf.Tensor] | None,
) -> dict[str, tf.Tensor]:
    image = _pixels(image, channels, bits)
    # Transparency does not count.
    colors = image[..., :3] if image.shape[-1] in (3, 4) else image[..., :1]
    ranges = tf.reduce_max(colors, (0, 1)) - tf.reduce_min(colors, (0, 1))
    return {
        "size": tf.shape(image),
        "spread": tf.reduce_max(ranges),
        # Includes type and shape, so that 2x8 and 4x4 differ.
        "digest": _digest(tf.io.serialize_tensor(image)),
        "sketch": sketch({"image": image}) if sketch else tf.zeros(0),
    }


def _first_not_finite(values: tf.Tensor) -> tf.Tensor:
    """The position of the first number that is not finite in float32, from 1; or 0."""
    is_finite = tf.math.is_finite(tf.cast(tf.reshape(values, [-1]), tf.float32))
    is_wrong = tf.concat([~is_finite, [True]], axis=0)
    first = tf.argmax(tf.cast(is_wrong, tf.int32))
    return tf.where(tf.reduce_all(is_finite), tf.zeros_like(first), first + 1)


class _Measures:
    """What is measured of the examples of a source."""

    def __init__(
        self,
        source: Source,
        decode: Callable[[Example], Example] | None,
        target: str,
        similarity: Similarity | None,
    ) -> None:
        fields = source.info.fields
        self.has_images = has_images(source)
        self._source = source
        self._decode = decode
        self._similarity = similarity
        self._inputs = sorted(fields.keys() - _NOT_INPUTS - {target})
        if self.has_images:
            self._inputs = ["image"]
        truths = [target] if target else []
        self._long_targets = []
        for name in truths:
            if not is_short(source.info.field(name)):
                self._long_targets.append(name)
        read = [*self._inputs, *truths]
        self._floats = [name for name in read if fields[name].dtype.is_floating]

    def new_columns(self, count: int) -> dict[str, np.ndarray]:
        """Columns of zeros, (count, ...); of images, if there are any."""
        images = count if self.has_images else 0
        sketch = tf.TensorSpec((0,), tf.float32)
        if self._similarity:
            sketch = self._similarity.spec
        return {
            "id": np.zeros(count, np.int64),
            "label": np.zeros(count, np.int64),
            "digest": np.zeros((count, 2), np.int64),
            "not_finite": np.zeros((count, len(self._floats)), np.int64),
            "size": np.zeros((images, 3), np.int32),
            "spread": np.zeros(images, np.uint8),
            "sketch": np.zeros((count, *sketch.shape), sketch.dtype.as_numpy_dtype),
        }

    def describe(self, example: Example) -> dict[str, tf.Tensor]:
        """The measurements of a raw example, by the names of the columns."""
        if self.has_images:
            spec = self._source.info.fields["image"]
            sketch = self._similarity.sketch if self._similarity else None
            describe = _describe_function(spec, *_format(self._source), sketch)
            measured = describe(example["image"])
        else:
            parts = [tf.io.serialize_tensor(example[name]) for name in self._inputs]
            measured = {"digest": _digest(tf.strings.join(["", *parts]))}
            if self._similarity:
                measured["sketch"] = self._similarity.sketch(example)
        for name in self._long_targets:
            measured["label"] = _digest(tf.io.serialize_tensor(example[name]))[0]
        if self._floats:
            places = [_first_not_finite(example[name]) for name in self._floats]
            measured["not_finite"] = tf.stack(places)
        if self._decode is None:
            return measured
        # An error of decoding is an error of this function.
        with tf.control_dependencies(tf.nest.flatten(self._decode(example))):
            return {name: tf.identity(value) for name, value in measured.items()}

    def fill(
        self, split: str, count: int, columns: dict[str, np.ndarray]
    ) -> dict[int, str]:
        """Fills the columns of a split; returns the errors of its examples by position.

        Does not fill `id` and a `label` that is short.
        """
        if not count:
            return {}
        read = self._source.reader(split)
        is_decoded = np.zeros(count, bool)
        done = 0
        examples = tf.data.Dataset.range(count).map(
            lambda position: (position, self.describe(read(position))),
            tf.data.AUTOTUNE,
        )
        batches = examples.ignore_errors().batch(_BATCH).prefetch(2)
        for positions, batch in with_options(batches).as_numpy_iterator():
            is_decoded[positions] = True
            for name, values in batch.items():
                columns[name][positions] = values
            done += len(positions)
            progress_bar.count("scanning", done, count)
        errors = {}
        for position in np.flatnonzero(~is_decoded):  # again, for the error
            try:
                self.describe(read(tf.constant(position, tf.int64)))
                errors[int(position)] = "decoding failed once"
            except READ_ERRORS as error:
                errors[int(position)] = reason(error)
        return errors

    def not_finite(self, places: np.ndarray) -> dict[int, str]:
        """Maps rows to the names of their first number that is not finite.

        `places` has those of `_first_not_finite` in each field, (examples, fields).
        """
        numbers = {}
        for row in np.flatnonzero(places.any(axis=1)).tolist():
            field = int(np.argmax(places[row] > 0))
            numbers[row] = self._name(self._floats[field], int(places[row, field]) - 1)
        return numbers

    def _name(self, field: str, position: int) -> str:
        """The name of a number of a field."""
        shape = self._source.info.fields[field].shape
        names = self._source.info.feature_names
        if shape.rank == 0 or not shape.is_fully_defined():
            return field
        if field == "features" and names is not None:
            return f"feature {names[position]!r}"
        index = [int(axis) for axis in np.unravel_index(position, shape.as_list())]
        return f"{field}{index}"
