"""RandAugment: several random operations from a fixed set for each image."""

from typing import Annotated

import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import geometry, pixel_values
from pipeline.data.augment.moves import moves
from pipeline.utils.errors import UsageError

# The operations of the paper, section 3. Lookup tables of levels come first.
_TABLE_OPERATIONS = (
    "identity",
    "brightness",
    "contrast",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
)
OPERATIONS = (
    *_TABLE_OPERATIONS,
    "color",
    "sharpness",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
)


@register
@moves("image")
def rand_augment(
    batch: Example,
    seeds: tf.Tensor,
    *,
    layers: Annotated[int, (1, 14)] = 2,
    magnitude: Annotated[float, (0, 30)] = 9.0,
) -> Example:
    """Applies random operations to each image, drawn from 14 with replacement.

    Cubuk et al., "RandAugment", NeurIPS 2020, with the strengths of torchvision's
    RandAugment and Pillow's operations. Geometric operations are centered, use the
    nearest pixel, and fill with zeros. Signs are random. For 8-bit images only.

    Args:
        layers: Number of operations for each image.
        magnitude: Strength of the operations: 0 is hardly any change, 30 the strongest.
    """
    images = pixel_values.images_of(batch, "rand_augment")
    if images.dtype != tf.uint8:
        raise UsageError(
            "--data.augment: rand_augment requires uint8 images; got"
            f" {images.dtype.name}"
        )
    for layer in range(layers):
        layer_seeds = draw.fold(seeds, layer)
        kind = draw.integers(layer_seeds, len(OPERATIONS))
        sign = 1.0 - 2.0 * tf.cast(draw.integers(layer_seeds, 2, draw=1), tf.float32)
        images = _change_colors(images, kind, sign, magnitude / 30)
        matrix = _matrix(images, kind, tf.cast(sign, tf.float64), magnitude / 30)
        images = geometry.transform(images, matrix, "nearest", "zero")
    return {**batch, "image": images}


def _is(kind: tf.Tensor, name: str) -> tf.Tensor:
    return kind == OPERATIONS.index(name)


def _change_colors(
    images: tf.Tensor, kind: tf.Tensor, sign: tf.Tensor, strength: float
) -> tf.Tensor:
    """Applies all operations except geometric ones to their images."""
    # A multiple of 2**-10, for exact products.
    factor = 1.0 + sign * (round(0.9 * strength * 1024) / 1024)
    values = tf.cast(images, tf.float32)
    color = pixel_values.blend(pixel_values.gray(values, True), values, factor)
    sharpness = pixel_values.blend(pixel_values.smooth(values, True), values, factor)
    is_color = _is(kind, "color")
    blended = pixel_values.select(is_color, color, sharpness)
    blended = pixel_values.restore(blended, images.dtype)
    tables = _tables(images, kind, factor, strength)  # (batch, channels, 256)
    starts = tf.range(tf.size(tables) // 256) * 256
    starts = tf.reshape(starts, (-1, 1, 1, images.shape[-1]))
    levels = tf.gather(tf.reshape(tables, [-1]), starts + tf.cast(images, tf.int32))
    is_blended = is_color | _is(kind, "sharpness")
    return pixel_values.select(is_blended, blended, tf.cast(levels, images.dtype))


def _tables(
    images: tf.Tensor, kind: tf.Tensor, factor: tf.Tensor, strength: float
) -> tf.Tensor:
    """Lookup tables of each channel of each image, int32 (batch, channels, 256)."""
    levels = tf.range(256)
    float_levels = tf.cast(levels, tf.float32)
    factor = factor[:, None, None]
    mean = pixel_values.mean_gray(tf.cast(images, tf.float32), True)[:, :, 0]
    values = tf.cast(images, tf.int32)
    low = tf.reduce_min(values, axis=(1, 2))[..., None]
    high = tf.reduce_max(values, axis=(1, 2))[..., None]
    stretched = (levels - low) * 255 // tf.maximum(high - low, 1)
    stretched = tf.clip_by_value(stretched, 0, 255)
    quantum = 1 << round(4 * strength)
    threshold = int(np.ceil(255 * (1 - strength)))
    counts = _count_levels(values)
    tables = {
        "identity": levels,
        "brightness": _to_levels(factor * float_levels),
        "contrast": _to_levels(mean + factor * (float_levels - mean)),
        "posterize": levels // quantum * quantum,
        "solarize": tf.where(levels < threshold, levels, 255 - levels),
        "autocontrast": tf.where(high > low, stretched, levels),
        "equalize": _equalize(counts, high),
    }
    shape = tf.shape(counts)
    stack = tf.stack(
        [tf.broadcast_to(tables[name], shape) for name in _TABLE_OPERATIONS], axis=1
    )
    index = tf.where(kind < len(_TABLE_OPERATIONS), kind, 0)
    return tf.gather(stack, index, batch_dims=1)


def _to_levels(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.round(tf.clip_by_value(values, 0.0, 255.0)), tf.int32)


def _count_levels(values: tf.Tensor) -> tf.Tensor:
    """Histograms of int32 levels, (batch, channels, 256)."""
    channels = values.shape[-1]
    histograms = tf.shape(values)[0] * channels
    starts = tf.reshape(tf.range(histograms) * 256, (-1, 1, 1, channels))
    bins = tf.reshape(starts + values, [-1])
    counts = tf.math.unsorted_segment_sum(tf.ones_like(bins), bins, histograms * 256)
    return tf.reshape(counts, (-1, channels, 256))


def _equalize(counts: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """Lookup tables of Pillow's ImageOps.equalize, from histograms."""
    last = tf.gather(counts, high, batch_dims=2)
    step = (tf.reduce_sum(counts, axis=-1, keepdims=True) - last) // 255
    before = tf.cumsum(counts, axis=-1, exclusive=True)
    levels = tf.minimum((step // 2 + before) // tf.maximum(step, 1), 255)
    return tf.where(step > 0, levels, tf.range(256))


def _matrix(
    images: tf.Tensor, kind: tf.Tensor, sign: tf.Tensor, strength: float
) -> tf.Tensor:
    """The affine maps of the images, from output to input; most are the identity."""
    height, width = images.shape[1:3]
    angle = np.radians(30 * strength)
    ones = tf.ones_like(sign)
    zeros = tf.zeros_like(sign)
    is_rotation = _is(kind, "rotate")
    cosine = tf.where(is_rotation, ones * np.cos(angle), ones)
    sine = tf.where(is_rotation, sign * np.sin(angle), zeros)

    def amount(name: str, maximum: float) -> tf.Tensor:
        return tf.where(_is(kind, name), sign * (maximum * strength), zeros)

    shear_y = amount("shear_y", 0.3)
    shear_x = amount("shear_x", 0.3)
    down = amount("translate_y", height * 150 / 331)
    right = amount("translate_x", width * 150 / 331)
    rows = tf.stack([cosine, shear_y + sine, down], axis=-1)
    columns = tf.stack([shear_x - sine, cosine, right], axis=-1)
    return tf.stack([rows, columns], axis=1)
