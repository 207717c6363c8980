"""Pixels of a batch: their field, range and dtype.

Levels of integer images range from 0 to the maximum of their dtype and are clipped to this range.
Float images have no known range and are never clipped; 0 is treated as black, and, for noise, 1 as
white. Operations compute in float32. Random factors are multiples of 2**-10, and interpolation
weights are multiples of 2**-8, so products and sums of 8-bit levels are exact in float32: all
devices and compilers give the same bits, no matter how operations are fused or reordered.
"""

import tensorflow as tf

from pipeline.contracts import Example
from pipeline.utils.errors import UsageError


def of(batch: Example, operation: str) -> tf.Tensor:
    """The images, (batch, height, width, channels); UsageError if the examples have none."""
    if "image" not in batch:
        raise UsageError(
            f"--data.augment: {operation} changes images, but the examples have no images"
        )
    return batch["image"]


def white(dtype: tf.DType) -> float:
    """The brightest level."""
    return float(dtype.max) if dtype.is_integer else 1.0


def restore(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Converts float32 levels to the image's dtype; for integers, rounds and clips to its range."""
    if not dtype.is_integer:
        return tf.cast(values, dtype)
    return tf.cast(tf.round(tf.clip_by_value(values, 0.0, white(dtype))), dtype)


def either(chosen: tf.Tensor, images: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """The image where `chosen`, bool (batch,), else the other image.

    Copies whole images: on a CPU, `tf.where` for each pixel takes ten times as long.
    """
    count = tf.shape(others)[0]
    rows = tf.range(count) + count * tf.cast(chosen, tf.int32)
    return tf.gather(tf.concat([others, images], axis=0), rows)


def in_rectangle(
    rows: tf.Tensor, columns: tf.Tensor, images: tf.Tensor, others: tf.Tensor
) -> tf.Tensor:
    """Pixels of `images` inside the rectangle of rows and columns, and of `others` elsewhere.

    `rows` is bool (batch, height), `columns` bool (batch, width).
    """
    if not others.dtype.is_integer:
        return tf.where(rows[:, :, None, None] & columns[:, None, :, None], images, others)
    # Uses bit operations on whole rows: on a CPU, `tf.where` for each pixel takes several times as
    # long.
    ones = -1 if others.dtype.min < 0 else others.dtype.max
    columns = tf.cast(tf.repeat(columns, others.shape[-1], axis=1), others.dtype) * ones
    mask = tf.cast(rows, others.dtype)[:, :, None] * columns[:, None, :]
    mask = tf.reshape(mask, tf.shape(others))
    return others ^ ((images ^ others) & mask)
