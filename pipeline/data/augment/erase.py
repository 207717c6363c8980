"""Random erasing of a rectangle."""

from typing import Annotated, Literal

import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import pixel_values


@register
def erase(
    batch: Example,
    seeds: tf.Tensor,
    *,
    probability: Annotated[float, (0, 1)] = 0.5,
    area: Annotated[tuple[float, float], "ascending", (1e-6, 1)] = (0.02, 0.33),
    ratio: Annotated[tuple[float, float], "ascending", (1e-3, 1e3)] = (0.3, 3.3),
    fill: Literal["zero", "mean", "noise"] = "zero",
) -> Example:
    """Erases one rectangle inside the image.

    Zhong et al., "Random erasing data augmentation", AAAI 2020: the fraction of the
    area is uniform, the ratio of height to width log-uniform. A side that would be
    longer than the image is cut, while the authors draw again. With a single
    area, `ratio=1,1` and probability 1, it is the cutout of DeVries and Taylor, arXiv
    1708.04552, kept inside the image.

    Args:
        probability: Probability that an image is changed.
        area: Smallest and largest fraction of the image's area.
        ratio: Smallest and largest ratio of height to width.
        fill: `zero`, the `mean` of each channel of the image, or uniform `noise` for
            each value (from 0 to 1 in images of floats).
    """
    images = pixel_values.images_of(batch, "erase")
    height, width = images.shape[1:3]
    # From tables: powers and exponentials are rounded differently on different devices.
    root = draw.choice(
        seeds, np.sqrt(np.linspace(*area, 1024) * height * width), draw=1
    )
    low, high = np.log(ratio)
    slope = draw.choice(seeds, np.exp(np.linspace(low, high, 1024) / 2), draw=2)

    def is_covered(size: int, length: tf.Tensor, number: int) -> tf.Tensor:
        """Whether the rectangle covers each position of an axis, (batch, size)."""
        length = tf.clip_by_value(tf.cast(tf.round(length), tf.int64), 1, size)
        start = draw.integers(seeds, size - length + 1, draw=number)
        positions = tf.range(size, dtype=tf.int64)[None, :]
        end = start + length
        return (positions >= start[:, None]) & (positions < end[:, None])

    rows = is_covered(height, root * slope, number=3)
    columns = is_covered(width, root / slope, number=4)
    rows &= (draw.uniform(seeds) < probability)[:, None]
    filling = _filling(images, seeds, fill)
    images = pixel_values.in_rectangle(rows, columns, filling, images)
    return {**batch, "image": images}


def _filling(images: tf.Tensor, seeds: tf.Tensor, fill: str) -> tf.Tensor:
    if fill == "zero":
        return tf.zeros([], images.dtype)
    if fill == "mean":
        # In float64, sums of integer levels are exact, in any order.
        mean = tf.reduce_mean(tf.cast(images, tf.float64), axis=(1, 2), keepdims=True)
        return pixel_values.restore(tf.cast(mean, tf.float32), images.dtype)
    count = int(np.prod(images.shape[1:]))
    pixel_seeds = draw.fold(seeds, 5)[:, None] + tf.range(count, dtype=tf.int64)
    noise = tf.reshape(draw.uniform(pixel_seeds), (-1, *images.shape[1:]))
    if images.dtype.is_integer:
        noise = tf.floor(noise * (pixel_values.white(images.dtype) + 1))
    return tf.cast(noise, images.dtype)
