"""Resampling of images, with a different affine map for each image of a batch.

Coordinates are fixed-point numbers, float64 rounded to 2**-16 of a pixel; interpolation
weights are multiples of 2**-8. Therefore, results for 8-bit images are bit-identical on
every device.
"""

from typing import Literal

import numpy as np
import tensorflow as tf

from pipeline.data.augment import _pixel_values

_ONE = 1 << 16
Fill = Literal["zero", "edge", "reflect"]
Interpolation = Literal["bilinear", "nearest"]


def inverse(matrix: tf.Tensor) -> tf.Tensor:
    """The inverses of affine maps, float64 (batch, 2, 3)."""
    a, b, c, d = (matrix[:, i, j] for i in range(2) for j in range(2))
    scale = 1.0 / (a * d - b * c)
    turned = tf.reshape(
        tf.stack([d * scale, -b * scale, -c * scale, a * scale], -1), (-1, 2, 2)
    )
    offset = -tf.reduce_sum(turned * matrix[:, None, :, 2], axis=-1)
    return tf.concat([turned, offset[..., None]], axis=-1)


def transform(
    images: tf.Tensor, matrix: tf.Tensor, interpolation: Interpolation, fill: Fill
) -> tf.Tensor:
    """Samples each output pixel at the position given by the matrix of its image.

    `matrix`, float64 (batch, 2, 3), maps (row, column, 1) of an output pixel to (row,
    column) in the input, both in pixels from the center of the image.
    """
    height, width = images.shape[1:3]
    rows, columns = (np.arange(size) - (size - 1) / 2 for size in (height, width))

    def place(axis: int, size: int) -> tf.Tensor:
        """Row or column in the input, int32 (batch, height, width), in 2**-16 of a
        pixel.
        """
        down, right, offset = (matrix[:, axis, i, None] for i in range(3))
        along = _fixed(down * rows)[:, :, None] + _fixed(right * columns)[:, None, :]
        return _near(along + _fixed(offset + (size - 1) / 2)[:, :, None], size, fill)

    down, right = place(0, height), place(1, width)
    if interpolation == "nearest":
        half = _ONE // 2
        return _pixels(images, (down + half) // _ONE, (right + half) // _ONE, fill)
    (top, down), (left, right) = _parted(down), _parted(right)
    total = 0.0
    for row, share in ((top, 1 - down), (top + 1, down)):
        for column, part in ((left, 1 - right), (left + 1, right)):
            near = tf.cast(_pixels(images, row, column, fill), tf.float32)
            total += near * (share * part)[..., None]
    return _pixel_values.restore(total, images.dtype)


def windows(
    images: tf.Tensor, top: tf.Tensor, left: tf.Tensor, high: tf.Tensor, wide: tf.Tensor
) -> tf.Tensor:
    """Windows of the images, bilinearly resized to the size of the images.

    Same as `tf.image.resize` of the window alone: pixel centers are at halves, and
    border pixels are repeated. A window (`high` rows from `top`, `wide` columns from
    `left`, int64 (batch,)) is never larger than its image, so antialiasing is not
    needed.
    """
    values = tf.cast(images, tf.float32)
    for axis, start, length in ((1, top, high), (2, left, wide)):
        size = images.shape[axis]
        # The center of pixel i is at (i + 1/2) length / size - 1/2 in the window.
        ahead = (2 * tf.range(size, dtype=tf.int64) + 1)[None, :] * length[
            :, None
        ] - size
        whole = tf.math.floordiv(ahead * 256 + size, 2 * size)  # in 2**-8 of a pixel
        near = tf.math.floordiv(whole, 256)
        share = tf.cast(whole - near * 256, tf.float32) * (1 / 256)
        share = share[:, :, None, None] if axis == 1 else share[:, None, :, None]
        end = length[:, None] - 1
        first, second = (
            tf.gather(
                values,
                start[:, None] + tf.clip_by_value(near + i, tf.zeros_like(end), end),
                axis=axis,
                batch_dims=1,
            )
            for i in (0, 1)
        )
        values = first * (1 - share) + second * share
    return _pixel_values.restore(values, images.dtype)


def _fixed(places: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.round(places * _ONE), tf.int64)


def _near(places: tf.Tensor, size: int, fill: Fill) -> tf.Tensor:
    """Equivalent int32 coordinates of int64 coordinates."""
    if fill == "reflect":
        places = tf.math.floormod(places, _period(size) * _ONE)
    else:
        places = tf.clip_by_value(places, -2 * _ONE, (size + 1) * _ONE)
    return tf.cast(places, tf.int32)


def _parted(places: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The pixel before each coordinate, and the weight of the next one, a multiple of
    2**-8.
    """
    places = places + (1 << 7)
    before = tf.bitwise.right_shift(places, 16)
    share = tf.bitwise.right_shift(places - before * _ONE, 8)
    return before, tf.cast(share, tf.float32) * (1 / 256)


def _pixels(
    images: tf.Tensor, row: tf.Tensor, column: tf.Tensor, fill: Fill
) -> tf.Tensor:
    """Pixels at integer coordinates, int32 (batch, height, width), which may be
    outside.
    """
    if fill == "zero":  # a frame of zeros for all positions outside
        images = tf.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
        row, column = row + 1, column + 1
    height, width, channels = images.shape[1:]
    if fill == "reflect":
        row, column = _reflected(row, height), _reflected(column, width)
    else:
        row = tf.clip_by_value(row, 0, height - 1)
        column = tf.clip_by_value(column, 0, width - 1)
    flat = tf.reshape(images, (-1, height * width, channels))
    index = tf.reshape(row * width + column, (tf.shape(row)[0], -1))
    found = tf.gather(flat, index, batch_dims=1)
    return tf.reshape(found, (-1, *row.shape[1:], channels))


def _reflected(index: tf.Tensor, size: int) -> tf.Tensor:
    index = tf.math.floormod(index, _period(size))
    return tf.minimum(index, _period(size) - index) if size > 1 else index


def _period(size: int) -> int:
    """Number of pixels after which the mirrored image repeats."""
    return max(2 * (size - 1), 1)
