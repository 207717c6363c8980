"""Pixels of a batch: their field, range and dtype.

Levels of integer images range from 0 to the maximum of their dtype and are clipped to it.
Floating-point images have no known range and are never clipped; 0 counts as black, and 1 as white
for noise. Operations compute in float32. Random factors are multiples of 2**-10, interpolation
weights of 2**-8: products and sums of 8-bit levels are then exact in float32, so every device and
compiler gives the same bits, however operations are fused or reordered.
"""

import tensorflow as tf

from pipeline.contracts import Example
from pipeline.utils.errors import UsageError


def of(batch: Example, operation: str) -> tf.Tensor:
    """The images, (batch, height, width, channels); UsageError if the examples have none."""
    if "image" not in batch:
        raise UsageError(
            f"--data.augment: {operation} changes images, but these examples have none"
        )
    return batch["image"]


def white(dtype: tf.DType) -> float:
    """The brightest level."""
    return float(dtype.max) if dtype.is_integer else 1.0


def restore(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Float32 levels in the dtype of the image; integers are rounded and clipped to its range."""
    if not dtype.is_integer:
        return tf.cast(values, dtype)
    return tf.cast(tf.round(tf.clip_by_value(values, 0.0, white(dtype))), dtype)


def either(chosen: tf.Tensor, images: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """The image if `chosen`, bool (batch,), else the other one.

    Copies whole images: on a CPU `tf.where`, pixel by pixel, takes ten times as long.
    """
    count = tf.shape(others)[0]
    rows = tf.range(count) + count * tf.cast(chosen, tf.int32)
    return tf.gather(tf.concat([others, images], axis=0), rows)


def in_rectangle(
    rows: tf.Tensor, columns: tf.Tensor, images: tf.Tensor, others: tf.Tensor
) -> tf.Tensor:
    """Pixels of `images` inside the rectangle of rows and columns, of `others` elsewhere.

    `rows` is bool (batch, height), `columns` bool (batch, width).
    """
    if not others.dtype.is_integer:
        return tf.where(rows[:, :, None, None] & columns[:, None, :, None], images, others)
    # By bits, along whole rows: `tf.where`, pixel by pixel, takes several times as long on a CPU.
    ones = -1 if others.dtype.min < 0 else others.dtype.max
    columns = tf.cast(tf.repeat(columns, others.shape[-1], axis=1), others.dtype) * ones
    mask = tf.cast(rows, others.dtype)[:, :, None] * columns[:, None, :]
    mask = tf.reshape(mask, tf.shape(others))
    return others ^ ((images ^ others) & mask)
