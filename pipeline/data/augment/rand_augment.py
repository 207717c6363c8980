"""RandAugment: several random operations from a fixed set for each image."""

from typing import Annotated

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import _geometry, _pixel_values
from pipeline.utils.errors import UsageError

# The operations of the paper, section 3. The first `_TABLES` are lookup tables of
# levels.
OPERATIONS = (
    *(
        "identity",
        "brightness",
        "contrast",
        "posterize",
        "solarize",
        "autocontrast",
        "equalize",
    ),
    *(
        "color",
        "sharpness",
        "shear_x",
        "shear_y",
        "translate_x",
        "translate_y",
        "rotate",
    ),
)
_TABLES = 7


def rand_augment(
    batch: Example,
    seeds: tf.Tensor,
    *,
    layers: Annotated[int, (1, 14)] = 2,
    magnitude: Annotated[float, (0, 30)] = 9.0,
) -> Example:
    """Applies `layers` operations to each image, drawn from 14 operations with
    replacement.

    Cubuk et al., "RandAugment", NeurIPS 2020, with the strengths of torchvision's
    RandAugment and Pillow's operations. Geometric operations are around the center, use
    the nearest pixel, and fill with zeros. Signs are random. For 8-bit images only.

    Args:
        layers: Number of operations for each image.
        magnitude: Strength of the operations: 0 is hardly any change, 30 the strongest.
    """
    images = _pixel_values.of(batch, "rand_augment")
    if images.dtype != tf.uint8:
        raise UsageError(
            "--data.augment: rand_augment requires uint8 images; got"
            f" {images.dtype.name}"
        )
    for layer in range(layers):
        own = draw.fold(seeds, layer)
        kind = draw.integers(own, len(OPERATIONS))
        sign = 1.0 - 2.0 * tf.cast(draw.integers(own, 2, draw=1), tf.float32)
        images = _recolored(images, kind, sign, magnitude / 30)
        matrix = _matrix(images, kind, tf.cast(sign, tf.float64), magnitude / 30)
        images = _geometry.transform(images, matrix, "nearest", "zero")
    return {**batch, "image": images}


def _is(kind: tf.Tensor, name: str) -> tf.Tensor:
    return kind == OPERATIONS.index(name)


def _recolored(
    images: tf.Tensor, kind: tf.Tensor, sign: tf.Tensor, strength: float
) -> tf.Tensor:
    """Applies all operations except geometric ones to their images."""
    # A multiple of 2**-10, for exact products.
    factor = 1.0 + sign * (round(0.9 * strength * 1024) / 1024)
    values = tf.cast(images, tf.float32)
    gray = _pixel_values.mixed(_pixel_values.gray(values, True), values, factor)
    sharp = _pixel_values.mixed(_pixel_values.smooth(values, True), values, factor)
    other = _pixel_values.either(_is(kind, "color"), gray, sharp)
    tables = _tables(images, kind, factor, strength)  # (batch, channels, 256)
    of_channel = tf.range(tf.size(tables) // 256) * 256
    start = tf.reshape(of_channel, (-1, 1, 1, images.shape[-1]))
    looked_up = tf.gather(tf.reshape(tables, [-1]), start + tf.cast(images, tf.int32))
    mixing = _is(kind, "color") | _is(kind, "sharpness")
    return _pixel_values.either(
        mixing,
        _pixel_values.restore(other, images.dtype),
        tf.cast(looked_up, images.dtype),
    )


def _tables(
    images: tf.Tensor, kind: tf.Tensor, factor: tf.Tensor, strength: float
) -> tf.Tensor:
    """Lookup tables of levels, for each channel of each image: int32 (batch, channels,
    256).
    """
    channels = images.shape[-1]
    levels = tf.range(256)
    whole = tf.cast(images, tf.int32)
    start = tf.range(tf.size(kind) * channels) * 256
    place = tf.reshape(start, (-1, 1, 1, channels)) + whole
    ones = tf.ones_like(tf.reshape(place, [-1]))
    counts = tf.math.unsorted_segment_sum(
        ones, tf.reshape(place, [-1]), tf.size(start) * 256
    )
    counts = tf.reshape(counts, (-1, channels, 256))
    mean = _pixel_values.mean_gray(tf.cast(images, tf.float32), True)[:, :, 0]
    bright, contrast = (
        tf.cast(tf.round(tf.clip_by_value(v, 0.0, 255.0)), tf.int32)
        for v in (
            factor[:, None, None] * tf.cast(levels, tf.float32),
            mean + factor[:, None, None] * (tf.cast(levels, tf.float32) - mean),
        )
    )
    low, high = (
        f(whole, axis=(1, 2))[..., None] for f in (tf.reduce_min, tf.reduce_max)
    )
    stretched = tf.clip_by_value(
        (levels - low) * 255 // tf.maximum(high - low, 1), 0, 255
    )
    lost_bits = round(4 * strength)
    tables = {
        "identity": levels,
        "brightness": bright,
        "contrast": contrast,
        "posterize": levels // (1 << lost_bits) * (1 << lost_bits),
        "solarize": tf.where(
            levels < int(np.ceil(255 * (1 - strength))), levels, 255 - levels
        ),
        "autocontrast": tf.where(high > low, stretched, levels),
        "equalize": _equalized(counts, high),
    }
    chosen = [tables[name] for name in OPERATIONS[:_TABLES]]
    stack = tf.stack([tf.broadcast_to(t, tf.shape(counts)) for t in chosen], axis=1)
    return tf.gather(stack, tf.where(kind < _TABLES, kind, 0), batch_dims=1)


def _equalized(counts: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """New levels as in Pillow's ImageOps.equalize, from (batch, channels, 256) counts
    of levels.
    """
    last = tf.gather(counts, high, batch_dims=2)
    step = (tf.reduce_sum(counts, axis=-1, keepdims=True) - last) // 255
    before = tf.cumsum(counts, axis=-1, exclusive=True)
    spread = tf.minimum((step // 2 + before) // tf.maximum(step, 1), 255)
    return tf.where(step > 0, spread, tf.range(256))


def _matrix(
    images: tf.Tensor, kind: tf.Tensor, sign: tf.Tensor, strength: float
) -> tf.Tensor:
    """Maps (row, column) in the output to (row, column) in the input; identity if
    nothing moves.
    """
    height, width = images.shape[1:3]
    angle = np.radians(30 * strength)
    one, zero = tf.ones_like(sign), tf.zeros_like(sign)
    turned = _is(kind, "rotate")
    stay = tf.where(turned, one * np.cos(angle), one)
    sine = tf.where(turned, sign * np.sin(angle), zero)

    def amount(name: str, most: float) -> tf.Tensor:
        return tf.where(_is(kind, name), sign * (most * strength), zero)

    rows = [
        stay,
        amount("shear_y", 0.3) + sine,
        amount("translate_y", height * 150 / 331),
    ]
    columns = [
        amount("shear_x", 0.3) - sine,
        stay,
        amount("translate_x", width * 150 / 331),
    ]
    return tf.stack([tf.stack(rows, axis=-1), tf.stack(columns, axis=-1)], axis=1)
