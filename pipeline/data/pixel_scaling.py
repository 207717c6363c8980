"""Pixel scaling: whole numbers to [0, 1], in training as in serving."""

import tensorflow as tf

_HIGHEST = {tf.uint8: 255, tf.uint16: 65535}


def pixel_scale(dtype: tf.DType) -> float:
    """The factor that scales pixels of a dtype to [0, 1]; 1 for floats, which have no
    known range.
    """
    return 1 / _HIGHEST.get(dtype, 1)


def scale_pixels(images: tf.Tensor, scale: float) -> tf.Tensor:
    """The images as float32, multiplied by a scale."""
    return tf.cast(images, tf.float32) * scale
