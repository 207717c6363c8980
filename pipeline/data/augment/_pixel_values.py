"""What augmentations know of pixels: where they lie in a batch, their range, and their dtype.

Levels of integer images run from 0 to the largest of their dtype, and what leaves this range is
clipped. Floating-point images have no known range and are never clipped: of theirs, 0 counts as
black, and 1 as white where noise is drawn. Operations compute in float32. Random factors are
multiples of 2**-10, weights of neighbouring pixels of 2**-8: products and sums of 8-bit levels are
then exact in float32, so that every device and compiler gives the same bits, whatever it fuses or
reorders.
"""

import tensorflow as tf

from pipeline.contracts import Example
from pipeline.utils.errors import UsageError


def of(batch: Example, operation: str) -> tf.Tensor:
    """The images, (batch, height, width, channels); UsageError where the examples have none."""
    if "image" not in batch:
        raise UsageError(
            f"--data.augment: {operation} changes images, and these examples have none"
        )
    return batch["image"]


def refuse_boxes(batch: Example, operation: str) -> None:
    """Raises UsageError for examples with `boxes`, for an operation that cannot keep them true."""
    if "boxes" in batch:
        raise UsageError(f"--data.augment: {operation} cannot be used on examples with boxes")


def white(dtype: tf.DType) -> float:
    """The brightest level."""
    return float(dtype.max) if dtype.is_integer else 1.0


def restore(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Float32 levels in the dtype of the image; integer ones are clipped to its range, rounded."""
    if not dtype.is_integer:
        return tf.cast(values, dtype)
    return tf.cast(tf.round(tf.clip_by_value(values, 0.0, white(dtype))), dtype)


def either(chosen: tf.Tensor, images: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """An image where `chosen`, bool (batch,), else the other one.

    Copies whole images: on a CPU `tf.where`, pixel by pixel, takes ten times as long.
    """
    count = tf.shape(others)[0]
    rows = tf.range(count) + count * tf.cast(chosen, tf.int32)
    return tf.gather(tf.concat([others, images], axis=0), rows)


def in_rectangle(
    rows: tf.Tensor, columns: tf.Tensor, images: tf.Tensor, others: tf.Tensor
) -> tf.Tensor:
    """Pixels of `images` where both the row and the column are in, of `others` elsewhere.

    Args:
        rows: bool (batch, height).
        columns: bool (batch, width).
        images: Of the shape of `others`, or one that is broadcast to it.
        others: (batch, height, width, channels).
    """
    if not others.dtype.is_integer:
        return tf.where(rows[:, :, None, None] & columns[:, None, :, None], images, others)
    # By bits, along whole rows: `tf.where`, pixel by pixel, takes several times as long on a CPU.
    ones = -1 if others.dtype.min < 0 else others.dtype.max
    columns = tf.cast(tf.repeat(columns, others.shape[-1], axis=1), others.dtype) * ones
    mask = tf.cast(rows, others.dtype)[:, :, None] * columns[:, None, :]
    mask = tf.reshape(mask, tf.shape(others))
    return others ^ ((images ^ others) & mask)


def each(values: tf.Tensor) -> tf.Tensor:
    """One number per image, (batch,), to be broadcast over the image."""
    return values[:, None, None, None]
