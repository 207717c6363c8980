"""Resampling of images, with a different affine map for each image of a batch.

Coordinates are fixed-point numbers, float64 rounded to 2**-16 of a pixel; interpolation
weights are multiples of 2**-8. Therefore, results for 8-bit images are bit-identical on
every device.
"""

from typing import Literal

import numpy as np
import tensorflow as tf

from pipeline.data.augment import pixel_values

_ONE = 1 << 16
Fill = Literal["zero", "edge", "reflect"]
Interpolation = Literal["bilinear", "nearest"]


def inverse(matrix: tf.Tensor) -> tf.Tensor:
    """The inverses of affine maps, float64 (batch, 2, 3)."""
    a, b, c, d = (matrix[:, i, j] for i in range(2) for j in range(2))
    scale = 1.0 / (a * d - b * c)
    elements = tf.stack([d * scale, -b * scale, -c * scale, a * scale], axis=-1)
    linear = tf.reshape(elements, (-1, 2, 2))
    offset = -tf.reduce_sum(linear * matrix[:, None, :, 2], axis=-1)
    return tf.concat([linear, offset[..., None]], axis=-1)


def transform(
    images: tf.Tensor, matrix: tf.Tensor, interpolation: Interpolation, fill: Fill
) -> tf.Tensor:
    """Samples each output pixel at the position given by the matrix of its image.

    `matrix`, float64 (batch, 2, 3), maps (row, column, 1) of an output pixel to (row,
    column) in the input, both in pixels from the center of the image.
    """
    height, width = images.shape[1:3]
    rows = np.arange(height) - (height - 1) / 2
    columns = np.arange(width) - (width - 1) / 2

    def coordinates(axis: int, size: int) -> tf.Tensor:
        """Rows or columns in the input, int32 (batch, height, width), fixed-point."""
        down, right, offset = (matrix[:, axis, i, None] for i in range(3))
        by_row = _to_fixed_point(down * rows)
        by_column = _to_fixed_point(right * columns)
        offset = _to_fixed_point(offset + (size - 1) / 2)
        total = by_row[:, :, None] + by_column[:, None, :] + offset[:, :, None]
        return _reduce_range(total, size, fill)

    down = coordinates(0, height)
    right = coordinates(1, width)
    if interpolation == "nearest":
        half = _ONE // 2
        return _pixels(images, (down + half) // _ONE, (right + half) // _ONE, fill)
    top, row_weight = _split_coordinates(down)
    left, column_weight = _split_coordinates(right)
    total = 0.0
    for row, weight in ((top, 1 - row_weight), (top + 1, row_weight)):
        for column, factor in ((left, 1 - column_weight), (left + 1, column_weight)):
            pixels = tf.cast(_pixels(images, row, column, fill), tf.float32)
            total += pixels * (weight * factor)[..., None]
    return pixel_values.restore(total, images.dtype)


def windows(
    images: tf.Tensor,
    top: tf.Tensor,
    left: tf.Tensor,
    heights: tf.Tensor,
    widths: tf.Tensor,
) -> tf.Tensor:
    """Windows of the images, bilinearly resized to the size of the images.

    Same as `tf.image.resize` of the window alone: pixel centers are at halves, and
    border pixels are repeated. The positions and sizes of the windows are int64
    (batch,). A window is never larger than its image, so antialiasing is not needed.
    """
    values = tf.cast(images, tf.float32)
    for axis, start, length in ((1, top, heights), (2, left, widths)):
        size = images.shape[axis]
        # The center of pixel i is at (i + 1/2) length / size - 1/2 in the window. As a
        # multiple of 1 / (2 size), this is an integer.
        centers = 2 * tf.range(size, dtype=tf.int64)[None, :] + 1
        numerator = centers * length[:, None] - size
        # In 2**-8 of a pixel.
        coordinate = tf.math.floordiv(numerator * 256 + size, 2 * size)
        before = tf.math.floordiv(coordinate, 256)
        weight = tf.cast(coordinate - before * 256, tf.float32) * (1 / 256)
        weight = weight[:, :, None, None] if axis == 1 else weight[:, None, :, None]
        last = length[:, None] - 1
        first = tf.clip_by_value(before, tf.zeros_like(last), last) + start[:, None]
        second = tf.clip_by_value(before + 1, tf.zeros_like(last), last)
        second += start[:, None]
        first_values = tf.gather(values, first, axis=axis, batch_dims=1)
        second_values = tf.gather(values, second, axis=axis, batch_dims=1)
        values = first_values * (1 - weight) + second_values * weight
    return pixel_values.restore(values, images.dtype)


def _to_fixed_point(coordinates: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.round(coordinates * _ONE), tf.int64)


def _reduce_range(coordinates: tf.Tensor, size: int, fill: Fill) -> tf.Tensor:
    """Converts int64 coordinates to equivalent int32 coordinates near the image."""
    if fill == "reflect":
        coordinates = tf.math.floormod(coordinates, _period(size) * _ONE)
    else:
        coordinates = tf.clip_by_value(coordinates, -2 * _ONE, (size + 1) * _ONE)
    return tf.cast(coordinates, tf.int32)


def _split_coordinates(coordinates: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The pixel before each coordinate, and the weight of the pixel after it.

    Weights are multiples of 2**-8.
    """
    coordinates = coordinates + (1 << 7)
    before = tf.bitwise.right_shift(coordinates, 16)
    weight = tf.bitwise.right_shift(coordinates - before * _ONE, 8)
    return before, tf.cast(weight, tf.float32) * (1 / 256)


def _pixels(
    images: tf.Tensor, row: tf.Tensor, column: tf.Tensor, fill: Fill
) -> tf.Tensor:
    """Pixels at int32 coordinates (batch, height, width), inside or outside."""
    if fill == "zero":  # a frame of zeros for all positions outside
        images = tf.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
        row = row + 1
        column = column + 1
    height, width, channels = images.shape[1:]
    if fill == "reflect":
        row = _reflect(row, height)
        column = _reflect(column, width)
    else:
        row = tf.clip_by_value(row, 0, height - 1)
        column = tf.clip_by_value(column, 0, width - 1)
    flat = tf.reshape(images, (-1, height * width, channels))
    index = tf.reshape(row * width + column, (tf.shape(row)[0], -1))
    pixels = tf.gather(flat, index, batch_dims=1)
    return tf.reshape(pixels, (-1, *row.shape[1:], channels))


def _reflect(index: tf.Tensor, size: int) -> tf.Tensor:
    index = tf.math.floormod(index, _period(size))
    return tf.minimum(index, _period(size) - index) if size > 1 else index


def _period(size: int) -> int:
    """The number of pixels after which a reflected image repeats."""
    return max(2 * (size - 1), 1)
