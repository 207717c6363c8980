"""MixUp and CutMix: blend each image with another image, or replace a rectangle of it.

The partner of position i is i xor 1: 0 and 1, 2 and 3, ... Because batches are split
into parts of even size, for replicas and micro-batches, the pairs are the same as in
the whole batch.
"""

from typing import Annotated

import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import pixel_values
from pipeline.data.augment.moves import moves
from pipeline.utils.errors import UsageError

_OF_COLUMNS = {"numbers", "codes", "dates", "words"}  # fields of a table's rows


@register
@moves("image")
def mixup(
    batch: Example,
    seeds: tf.Tensor,
    *,
    alpha: Annotated[float, (0.01, 100)] = 0.2,
    probability: Annotated[float, (0, 1)] = 1.0,
    epochs: Annotated[int, (1, None)] | None = None,
) -> Example:
    """Replaces each image by its weighted mean with another image; labels likewise.

    Zhang et al., "mixup: beyond empirical risk minimization", ICLR 2018, with a
    separate weight for each example.

    Args:
        batch: Contains `image` and `label`. Adds `partner_label`, and `share` (float32,
            (batch,)), the weight of the original image.
        alpha: The weight is drawn from Beta(alpha, alpha).
        probability: Probability that an image is changed.
        epochs: First epochs in which images are changed; None: all.
    """
    batch = _add_partner_labels(batch, "mixup")
    images = batch["image"]
    chosen = _is_chosen(batch, draw.uniform(seeds, draw=1), probability, epochs)
    share = tf.where(chosen, draw.choice(seeds, _beta_quantiles(alpha)), 1.0)
    weight = share[:, None, None, None]
    values = tf.cast(images, tf.float32)
    partner_values = tf.cast(_swap_pairs(images), tf.float32)
    mixed = values * weight + partner_values * (1 - weight)
    mixed = pixel_values.restore(mixed, images.dtype)
    return {**batch, "image": mixed, "share": share}


@register
@moves("image")
def cutmix(
    batch: Example,
    seeds: tf.Tensor,
    *,
    alpha: Annotated[float, (0.01, 100)] = 1.0,
    probability: Annotated[float, (0, 1)] = 1.0,
    epochs: Annotated[int, (1, None)] | None = None,
) -> Example:
    """Pastes a rectangle of another image into each image; labels are weighted by area.

    Yun et al., "CutMix", ICCV 2019: the rectangle has the proportions of the image and
    a uniform center, and is clipped at the border; then its area is computed again.

    Args:
        batch: Contains `image` and `label`. Adds `partner_label`, and `share` (float32,
            (batch,)), the area fraction of the original image, rounded to 2**-16.
        alpha: The area fraction, before clipping, is drawn from Beta(alpha, alpha).
        probability: Probability that an image is changed.
        epochs: First epochs in which images are changed; None: all.
    """
    batch = _add_partner_labels(batch, "cutmix")
    images = batch["image"]
    # Roots are read from a table, because devices round them differently.
    side = draw.choice(seeds, np.sqrt(1 - _beta_quantiles(alpha)))
    chosen = _is_chosen(batch, draw.uniform(seeds, draw=3), probability, epochs)
    side = tf.where(chosen, side, 0.0)
    inside: list[tf.Tensor] = []
    area = tf.constant(1, tf.int64)
    for axis, size in enumerate(images.shape[1:3]):
        length = tf.cast(tf.floor(side * size), tf.int64)
        first = draw.integers(seeds, size, draw=1 + axis) - length // 2
        last = tf.minimum(first + length, size)
        first = tf.maximum(first, 0)
        area *= last - first
        positions = tf.range(size, dtype=tf.int64)[None, :]
        inside.append((positions >= first[:, None]) & (positions < last[:, None]))
    # In multiples of 2**-16, because compilers divide by a constant in different ways.
    image_area = images.shape[1] * images.shape[2]
    covered = tf.math.floordiv(area * (2 << 16) + image_area, 2 * image_area)
    share = 1 - tf.cast(covered, tf.float32) * (1 / (1 << 16))
    rows, columns = inside
    mixed = pixel_values.in_rectangle(rows, columns, _swap_pairs(images), images)
    return {**batch, "image": mixed, "share": share}


def _is_chosen(
    batch: Example, number: tf.Tensor, probability: float, epochs: int | None
) -> tf.Tensor:
    """Whether an image is changed, from a number from 0 to 1 for each image."""
    chosen = number < probability
    if epochs is not None:
        chosen &= batch["epoch"] < epochs
    return chosen


def _add_partner_labels(batch: Example, operation: str) -> Example:
    """Adds `partner_label`, the label of each example's partner."""
    images = pixel_values.images_of(batch, operation)
    if "label" not in batch:
        raise UsageError(
            f"--data.augment: {operation} mixes labels, but the examples have none"
        )
    if not _OF_COLUMNS.isdisjoint(batch):
        raise UsageError(
            f"--data.augment: {operation} mixes images, but not the columns beside"
            " them; remove it"
        )
    if "partner_label" in batch:
        raise UsageError(
            f"--data.augment: {operation} cannot follow mixup or cutmix; use only one"
            " of them"
        )
    if images.shape[0] is None or images.shape[0] % 2:
        raise UsageError(
            f"--data.augment: {operation} pairs the examples of a micro-batch, which"
            f" has {images.shape[0]} examples; --train.batch-size divided by the number"
            " of replicas and by --train.accumulate must be even"
        )
    return {**batch, "partner_label": _swap_pairs(batch["label"])}


def _swap_pairs(values: tf.Tensor) -> tf.Tensor:
    """Swaps adjacent examples: position i gets the value at i xor 1."""
    pairs = tf.reshape(values, (-1, 2, *values.shape[1:]))
    return tf.reshape(tf.reverse(pairs, [1]), values.shape)


def _beta_quantiles(alpha: float) -> np.ndarray:
    """2**14 quantiles of Beta(alpha, alpha), rounded to multiples of 2**-16.

    A randomly chosen quantile is Beta-distributed, up to 2**-14 in probability.
    """
    from scipy import special

    steps = (np.arange(1 << 14) + 0.5) / (1 << 14)
    return np.round(special.betaincinv(alpha, alpha, steps) * (1 << 16)) / (1 << 16)
