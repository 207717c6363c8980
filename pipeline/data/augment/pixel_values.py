"""Operations on the pixel values of a batch that give the same bits on every device.

Levels of integer images range from 0 to the maximum of their dtype and are clipped to
this range. Float images have no known range and are never clipped; 0 is treated as
black, and, for noise, 1 as white. Operations compute in float32. Random factors are
multiples of 2**-10, and interpolation weights are multiples of 2**-8, so products and
sums of 8-bit levels are exact in float32: all devices and compilers give the same bits,
no matter how operations are fused or reordered.

As in Pillow's ImageEnhance, an image is blended with a degenerate image: `factor` 0
gives the degenerate image, 1 the original, and more than 1 extrapolates. Values are
float32 levels, (batch, height, width, channels); if `whole`, they are integers, rounded
as in Pillow.
"""

import tensorflow as tf

from pipeline.contracts import Example
from pipeline.utils.errors import UsageError


def images_of(batch: Example, operation: str) -> tf.Tensor:
    """The images of a batch, (batch, height, width, channels).

    Raises UsageError naming the operation if there are no images.
    """
    if "image" not in batch:
        raise UsageError(
            f"--data.augment: {operation} changes images, but the examples have no"
            " images"
        )
    return batch["image"]


def white(dtype: tf.DType) -> float:
    """The brightest level."""
    return float(dtype.max) if dtype.is_integer else 1.0


def restore(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Converts float32 levels to the image's dtype; rounds and clips to integers."""
    if not dtype.is_integer:
        return tf.cast(values, dtype)
    return tf.cast(tf.round(tf.clip_by_value(values, 0.0, white(dtype))), dtype)


def select(condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """The images of `x` where the condition, bool (batch,), is true, else of `y`.

    Copies whole images: on a CPU, `tf.where` for each pixel takes ten times as long.
    """
    count = tf.shape(y)[0]
    rows = tf.range(count) + count * tf.cast(condition, tf.int32)
    return tf.gather(tf.concat([y, x], axis=0), rows)


def in_rectangle(
    rows: tf.Tensor, columns: tf.Tensor, inside: tf.Tensor, outside: tf.Tensor
) -> tf.Tensor:
    """Combines images: `inside` in the rectangle of rows and columns, else `outside`.

    `rows` is bool (batch, height), `columns` bool (batch, width).
    """
    dtype = outside.dtype
    if not dtype.is_integer:
        mask = rows[:, :, None, None] & columns[:, None, :, None]
        return tf.where(mask, inside, outside)
    # Uses bit operations on whole rows: on a CPU, `tf.where` for each pixel takes
    # several times as long.
    ones = -1 if dtype.min < 0 else dtype.max
    columns = tf.cast(tf.repeat(columns, outside.shape[-1], axis=1), dtype) * ones
    mask = tf.cast(rows, dtype)[:, :, None] * columns[:, None, :]
    mask = tf.reshape(mask, tf.shape(outside))
    return outside ^ ((inside ^ outside) & mask)


def blend(
    degenerate: tf.Tensor | float, values: tf.Tensor, factor: tf.Tensor
) -> tf.Tensor:
    """Blends images with degenerate images; `factor` is float32 (batch,)."""
    return degenerate + factor[:, None, None, None] * (values - degenerate)


def gray(values: tf.Tensor, whole: bool) -> tf.Tensor:
    """Luma of ITU-R 601 with Pillow's 16-bit weights, (batch, height, width, 1)."""
    if values.shape[-1] != 3:
        return values
    red, green, blue = tf.split(values, 3, axis=-1)
    # Sums of 8-bit levels times 16-bit weights are exact in float32.
    luma = (red * 19595.0 + green * 38470.0 + blue * 7471.0) * (1.0 / (1 << 16))
    return tf.floor(luma + 0.5) if whole else luma


def mean_gray(values: tf.Tensor, whole: bool) -> tf.Tensor:
    """Mean luma of each image, (batch, 1, 1, 1)."""
    # In float64, sums of integer levels are exact, in any order.
    luma = tf.cast(gray(values, whole), tf.float64)
    mean = tf.cast(tf.reduce_mean(luma, axis=(1, 2, 3), keepdims=True), tf.float32)
    return tf.floor(mean + 0.5) if whole else mean


def smooth(values: tf.Tensor, whole: bool) -> tf.Tensor:
    """Pillow's SMOOTH filter: a 3x3 mean with weight 5 for the center.

    Pixels at the border are unchanged.
    """
    height, width = values.shape[1:3]
    if min(height, width) < 3:
        return values
    total = sum(
        values[:, i : height - 2 + i, j : width - 2 + j]
        for i in range(3)
        for j in range(3)
    )
    inner = (total + 4.0 * values[:, 1:-1, 1:-1]) / 13.0
    inner = tf.floor(inner + 0.5) if whole else inner
    rows = tf.concat([values[:, 1:-1, :1], inner, values[:, 1:-1, -1:]], axis=2)
    return tf.concat([values[:, :1], rows, values[:, -1:]], axis=1)
