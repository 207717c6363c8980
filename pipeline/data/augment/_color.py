"""Brightness, contrast, saturation and sharpness as in Pillow's ImageEnhance, batched.

Each function blends the image with a degenerate image: `factor` 0 gives the degenerate image, 1 the
original, and more than 1 extrapolates. Values are float32 levels, (batch, height, width, channels);
if `whole`, they are integers, rounded as in Pillow.
"""

import tensorflow as tf


def mixed(degenerate: tf.Tensor | float, values: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """The blended images; `factor` is float32 (batch,)."""
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
    """Pillow's SMOOTH filter: a 3x3 mean with weight 5 for the center; the border is unchanged."""
    height, width = values.shape[1:3]
    if min(height, width) < 3:
        return values
    around = sum(
        values[:, i : height - 2 + i, j : width - 2 + j] for i in range(3) for j in range(3)
    )
    inner = (around + 4.0 * values[:, 1:-1, 1:-1]) / 13.0
    inner = tf.floor(inner + 0.5) if whole else inner
    rows = tf.concat([values[:, 1:-1, :1], inner, values[:, 1:-1, -1:]], axis=2)
    return tf.concat([values[:, :1], rows, values[:, -1:]], axis=1)
