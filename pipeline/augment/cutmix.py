"""Puts a part of its neighbour's image into each image."""

from typing import Annotated

import tensorflow as tf

from pipeline import partners
from pipeline import seeds as draw
from pipeline.contracts import Example


def cutmix(
    batch: Example, seeds: tf.Tensor, *, alpha: Annotated[float, (0.01, 100)] = 1.0
) -> Example:
    """A rectangle of the partner's image, at its place; labels are learned by their areas.

    Yun et al., "CutMix", ICCV 2019: of the image's shape and around a uniform middle, cut off at
    the border, after which the share is counted again. The partner of position i of a
    micro-batch is i xor 1.

    Args:
        batch: Holds `image` and `label`; gets `partner_label`, and `share` (float32, (batch,)):
            how much of the image is its own.
        seeds: One per example.
        alpha: The share is Beta(alpha, alpha) distributed before the border cuts.
    """
    batch = partners.labelled(batch, "cutmix")
    images = batch["image"]
    side = tf.sqrt(1 - draw.choice(seeds, partners.shares(alpha)))
    inside = tf.constant(True)
    area = tf.constant(1, tf.int64)
    for axis, size in enumerate(images.shape[1:3]):
        length = tf.cast(tf.floor(side * size), tf.int64)
        first = draw.integers(seeds, size, draw=1 + axis) - length // 2
        last = tf.minimum(first + length, size)
        first = tf.maximum(first, 0)
        area *= last - first
        place = tf.range(size, dtype=tf.int64)[None, :]
        here = (place >= first[:, None]) & (place < last[:, None])
        inside &= here[:, :, None, None] if axis == 0 else here[:, None, :, None]
    share = 1 - tf.cast(area, tf.float32) / (images.shape[1] * images.shape[2])
    mixed = tf.where(inside, partners.swapped(images), images)
    return {**batch, "image": mixed, "share": share}
