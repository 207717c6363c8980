"""Shared by the signatures of all tasks: guards, tf.Examples, example files, top
classes.

The guards run before any other operation of a request and make the server reply
INVALID_ARGUMENT. The server itself checks only names: without guards, a missing batch
axis would end its process inside a convolution, and other wrong shapes would be
answered.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

MOST_BYTES = 2**26
"""Limit for one encoded image, far above that of a photograph."""
MOST_CLASSES = 5
"""Number of classes that an answer lists for each example."""
_REFUSED, _INTO, _OVER, _FOUR, _NUMBER = range(5)
# What follows a tag, at each depth: a message to enter, or bytes to skip
# (tensorflow/core/example/example.proto, feature.proto).
_LISTED = {
    0x0A: _OVER,
    0x0D: _FOUR,
    0x08: _NUMBER,
}  # bytes or packed numbers; one number
_TAGS = (
    {0x0A: _INTO},  # Example: features
    {0x0A: _INTO},  # Features: an entry
    {0x0A: _OVER, 0x12: _INTO},  # an entry: its key and its Feature
    {
        0x0A: _INTO,
        0x12: _INTO,
        0x1A: _INTO,
    },  # Feature: a list of bytes, floats, integers
    _LISTED,
)
_MOST_PARTS = 10_000  # takes a second; a server sends the numbers of a list as one part
_WINDOW = 11  # a tag and the longest number


def batch(values: tf.Tensor, shape: Sequence[int | None]) -> tf.Tensor:
    """The values, if they have this shape and at least one row.

    Otherwise, some operations would accept an empty batch and others would not.
    """
    values = tf.ensure_shape(values, shape)
    return _require(tf.shape(values)[0] > 0, "the batch is empty", values)


def files(contents: tf.Tensor) -> tf.Tensor:
    """Encoded images: string (batch,), each of at most `MOST_BYTES`."""
    contents = batch(contents, (None,))
    longest = tf.reduce_max(tf.strings.length(contents))
    return _require(
        longest <= MOST_BYTES, f"a file has more than {MOST_BYTES} bytes", contents
    )


def examples(
    serialized: tf.Tensor, features: Mapping[str, tf.io.FixedLenFeature]
) -> dict[str, tf.Tensor]:
    """Features of serialized `tf.Example`s, string (batch,), by name: (batch, ...)."""
    serialized = batch(serialized, (None,))
    valid = tf.reduce_all(are_examples(serialized))
    serialized = _require(valid, "a string is not a tf.Example", serialized)
    return tf.io.parse_example(serialized, dict(features))


def encoded(images: np.ndarray) -> list[bytes]:
    """Encodes images, uint8 (number, height, width, channels): in turn as PNG, as JPEG,
    and as PNG of twice the size, so that a check of these files includes decoding and
    resizing.
    """
    files = []
    for number, image in enumerate(images):
        encode = tf.io.encode_jpeg if number % 3 == 1 else tf.io.encode_png
        files.append(encode(_doubled(image) if number % 3 == 2 else image).numpy())
    return files


def _doubled(image: np.ndarray) -> np.ndarray:
    """Twice as high and wide, with a black frame.

    Resizing it to its original size needs only sums of eighths, which are exact on
    every CPU and with every compiler. Without the frame, pixels at the border would be
    sums of sevenths.
    """
    framed = np.zeros_like(image)
    framed[2:-2, 2:-2] = image[2:-2, 2:-2]
    return framed.repeat(2, axis=0).repeat(2, axis=1)


def within(values: tf.Tensor, limits: Sequence[float], name: str) -> tf.Tensor:
    """The values, if they are near the range of the training examples: at most one
    range away.
    """
    low, high = limits
    margin = max(high - low, 1e-6)
    lowest, highest = tf.reduce_min(values), tf.reduce_max(values)
    good = (lowest >= low - margin) & (highest <= high + margin)
    return _require(
        good, f"{name} must be from {low:g} to {high:g}, as in training", values
    )


def finite(values: tf.Tensor, name: str) -> tf.Tensor:
    """The values, if they contain no NaN and no infinity."""
    return tf.debugging.check_numerics(values, f"{name} must be finite")


def best(probabilities: tf.Tensor, names: Sequence[str]) -> tuple[tf.Tensor, tf.Tensor]:
    """Names (string) and probabilities (float32) of the top classes, each (batch, at
    most 5).
    """
    scores, classes = tf.math.top_k(probabilities, min(MOST_CLASSES, len(names)))
    return tf.gather(tf.constant(list(names)), classes), scores


def _require(condition: tf.Tensor, message: str, values: tf.Tensor) -> tf.Tensor:
    """The values, which cannot be used unless the condition holds."""
    with tf.control_dependencies([tf.debugging.Assert(condition, [message])]):
        return tf.identity(values)


def are_examples(serialized: tf.Tensor) -> tf.Tensor:
    """bool (batch,): whether each string (batch,) is a tf.Example with consistent
    lengths.

    TensorFlow's parser (2.21: tensorflow/core/util/example_proto_fast_parsing.cc) reads
    a length of 2**31 within an example as negative and ends the process: 30 bytes from
    any client are enough.

    All strings are parsed in parallel, one part of each per step. This is stricter than
    a parser: unknown fields and more than 10,000 parts are rejected.
    """
    depths, size = len(_TAGS), tf.strings.length(serialized)
    kinds = np.zeros((depths, 256), np.int32)
    for number, tags in enumerate(_TAGS):
        kinds[number, list(tags)] = list(tags.values())

    def step(
        count: tf.Tensor,
        at: tf.Tensor,
        depth: tf.Tensor,
        ends: tf.Tensor,
        good: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        end = tf.gather(ends, depth, batch_dims=1)
        window = tf.strings.substr(
            serialized, at, tf.fill(tf.shape(at), _WINDOW)
        ) + bytes(_WINDOW)
        window = tf.cast(
            tf.io.decode_raw(window, tf.uint8, fixed_length=_WINDOW), tf.int32
        )
        kind = tf.gather_nd(kinds, tf.stack([depth, window[:, 0]], axis=1))
        last = window[:, 1:] < 128  # whether a number ends with this byte
        length = 1 + tf.argmax(tf.cast(last, tf.int32), axis=1, output_type=tf.int32)
        # A number of at most four bytes; longer ones are not valid lengths.
        digits = tf.where(tf.range(4) < length[:, None], window[:, 1:5] % 128, 0)
        value = tf.reduce_sum(digits * 128 ** tf.range(4), axis=1)
        begin = at + 1 + length
        follows = tf.gather_nd(
            tf.stack([end + 1, begin + value, begin + value, at + 5, begin], axis=1),
            tf.stack([tf.range(tf.size(kind)), kind], axis=1),
        )
        counted = (kind == _INTO) | (kind == _OVER)
        fits = (
            tf.reduce_any(last, axis=1) & (follows <= end) & ~(counted & (length > 4))
        )
        over, into = at == end, (kind == _INTO) & (at != end)
        inner = tf.one_hot(
            depth + 1, depths, on_value=True, off_value=False, dtype=tf.bool
        )
        good &= over | fits
        ends = tf.where(inner & (into & good)[:, None], follows[:, None], ends)
        at = tf.where(over | ~good, at, tf.where(into, begin, follows))
        moved = tf.where(over, -1, tf.where(into, 1, 0))
        return (
            count + 1,
            at,
            tf.where(good, tf.maximum(depth + moved, 0), depth),
            ends,
            good,
        )

    def is_running(
        count: tf.Tensor,
        at: tf.Tensor,
        depth: tf.Tensor,
        ends: tf.Tensor,
        good: tf.Tensor,
    ) -> tf.Tensor:
        return (count < _MOST_PARTS) & tf.reduce_any(good & ((depth > 0) | (at < size)))

    start = (
        tf.constant(0),
        tf.zeros_like(size),
        tf.zeros_like(size),
        tf.repeat(size[:, None], depths, axis=1),
        tf.ones_like(size, tf.bool),
    )
    _, at, depth, _, good = tf.while_loop(
        is_running, step, start, parallel_iterations=1
    )
    return good & (depth == 0) & (at == size)
