"""CutMix: replaces a rectangle of each image by that of another image."""

from typing import Annotated

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import _pairs, _pixel_values


def cutmix(
    batch: Example, seeds: tf.Tensor, *, alpha: Annotated[float, (0.01, 100)] = 1.0
) -> Example:
    """Copies a rectangle from the partner's image; labels are weighted by their areas.

    Yun et al., "CutMix", ICCV 2019: the rectangle has the proportions of the image and a uniform
    center, and is cut at the border; then its area is computed again. The partner of position i of
    a micro-batch is i xor 1.

    Args:
        batch: With `image` and `label`; `partner_label` and `share` are added (float32, (batch,)):
            the share of the original image, rounded to 2**-16.
        seeds: One per example.
        alpha: The share is Beta(alpha, alpha) distributed before the cut at the border.
    """
    batch = _pairs.labelled(batch, "cutmix")
    images = batch["image"]
    # Roots from a table: they round differently on different devices.
    side = draw.choice(seeds, np.sqrt(1 - _pairs.shares(alpha)))
    inside: list[tf.Tensor] = []
    area = tf.constant(1, tf.int64)
    for axis, size in enumerate(images.shape[1:3]):
        length = tf.cast(tf.floor(side * size), tf.int64)
        first = draw.integers(seeds, size, draw=1 + axis) - length // 2
        last = tf.minimum(first + length, size)
        first = tf.maximum(first, 0)
        area *= last - first
        place = tf.range(size, dtype=tf.int64)[None, :]
        inside.append((place >= first[:, None]) & (place < last[:, None]))
    # In multiples of 2**-16: compilers divide by a constant in several ways.
    whole = images.shape[1] * images.shape[2]
    covered = tf.math.floordiv(area * (2 << 16) + whole, 2 * whole)
    share = 1 - tf.cast(covered, tf.float32) * (1 / (1 << 16))
    rows, columns = inside
    mixed = _pixel_values.in_rectangle(rows, columns, _pairs.swapped(images), images)
    return {**batch, "image": mixed, "share": share}
