"""Guards, example files and top classes for the signatures of all tasks.

The guards run before any other operation of a request and make the server reply
INVALID_ARGUMENT. The server itself checks only names: without guards, a missing batch
axis would end its process inside a convolution, and other wrong shapes would be
answered.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

MAX_BYTES = 2**26
"""Limit for an encoded image; photographs are far smaller."""
MAX_CLASSES = 5
"""Number of classes that a prediction lists for each example."""


def batch(values: tf.Tensor, shape: Sequence[int | None]) -> tf.Tensor:
    """Requires that values have this shape and at least one row.

    Without it, only some operations would reject an empty batch.
    """
    values = tf.ensure_shape(values, shape)
    return _require(tf.shape(values)[0] > 0, "the batch is empty", values)


def count(values: tf.Tensor, expected: tf.Tensor, name: str) -> tf.Tensor:
    """Requires as many rows as another input has."""
    message = f"{name} must have as many examples as the other inputs"
    return _require(tf.shape(values)[0] == expected, message, values)


def files(contents: tf.Tensor) -> tf.Tensor:
    """Requires a batch of strings of at most `MAX_BYTES`: encoded images."""
    contents = batch(contents, (None,))
    longest = tf.reduce_max(tf.strings.length(contents))
    message = f"a file has more than {MAX_BYTES} bytes"
    return _require(longest <= MAX_BYTES, message, contents)


def encode_images(images: np.ndarray) -> list[bytes]:
    """Encodes images, uint8 (number, height, width, channels).

    They are in turn a PNG, a JPEG, and a PNG of twice the size, so that a check of
    these files includes decoding and resizing.
    """
    files = []
    for number, image in enumerate(images):
        encode = tf.io.encode_jpeg if number % 3 == 1 else tf.io.encode_png
        if number % 3 == 2:
            image = _double_size(image)
        files.append(encode(image).numpy())
    return files


def _double_size(image: np.ndarray) -> np.ndarray:
    """Doubles height and width, and adds a black frame.

    Resizing it to its original size needs only sums of eighths, which are exact on
    every CPU and with every compiler. Without the frame, pixels at the border would be
    sums of sevenths.
    """
    framed = np.zeros_like(image)
    framed[2:-2, 2:-2] = image[2:-2, 2:-2]
    return framed.repeat(2, axis=0).repeat(2, axis=1)


def within(values: tf.Tensor, limits: Sequence[float], name: str) -> tf.Tensor:
    """Requires values near the range of the training examples: at most a range away."""
    low, high = limits
    margin = max(high - low, 1e-6)
    good = tf.reduce_min(values) >= low - margin
    good &= tf.reduce_max(values) <= high + margin
    message = f"{name} must be from {low:g} to {high:g}, as in training"
    return _require(good, message, values)


def between(values: tf.Tensor, low: float, high: float, name: str) -> tf.Tensor:
    """Requires values from `low` to `high`."""
    good = tf.reduce_all((values >= low) & (values <= high))
    return _require(good, f"{name} must be from {low:g} to {high:g}", values)


def finite(values: tf.Tensor, name: str) -> tf.Tensor:
    """Requires values without NaN and infinity."""
    return tf.debugging.check_numerics(values, f"{name} must be finite")


def best(probabilities: tf.Tensor, names: Sequence[str]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns names and probabilities of the at most 5 top classes, (batch, n)."""
    scores, classes = tf.math.top_k(probabilities, min(MAX_CLASSES, len(names)))
    return tf.gather(tf.constant(list(names)), classes), scores


def _require(condition: tf.Tensor, message: str, values: tf.Tensor) -> tf.Tensor:
    """Returns the values, whose use fails unless the condition holds."""
    with tf.control_dependencies([tf.debugging.Assert(condition, [message])]):
        return tf.identity(values)
