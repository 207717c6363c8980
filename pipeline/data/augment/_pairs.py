"""Pairs of adjacent examples, for operations that mix two images.

The partner of position i is i xor 1: 0 and 1, 2 and 3, ... As a batch is cut into parts of even
size, for replicas and micro-batches, the pairs are those of the whole batch in every part.
"""

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example
from pipeline.data.augment import _pixel_values
from pipeline.utils.errors import UsageError


def labelled(batch: Example, operation: str) -> Example:
    """The batch with `partner_label`, the label of each example's partner."""
    images = _pixel_values.of(batch, operation)
    if "label" not in batch:
        raise UsageError(f"--data.augment: {operation} mixes labels, but these examples have none")
    if "partner_label" in batch:
        raise UsageError(
            f"--data.augment: {operation} cannot follow mixup or cutmix; use only one of them"
        )
    if images.shape[0] is None or images.shape[0] % 2:
        raise UsageError(
            f"--data.augment: {operation} pairs the examples of a micro-batch, here of "
            f"{images.shape[0]}; --train.batch-size divided by the replicas and by "
            "--train.accumulate must be even"
        )
    return {**batch, "partner_label": swapped(batch["label"])}


def swapped(values: tf.Tensor) -> tf.Tensor:
    """Adjacent examples exchanged: position i gets the value of i xor 1."""
    pairs = tf.reshape(values, (-1, 2, *values.shape[1:]))
    return tf.reshape(tf.reverse(pairs, [1]), values.shape)


def shares(alpha: float) -> np.ndarray:
    """Quantiles of Beta(alpha, alpha), multiples of 2**-16, at the centers of 2**14 steps.

    A random one of them is Beta-distributed up to 2**-14 in probability.
    """
    from scipy import special

    steps = (np.arange(1 << 14) + 0.5) / (1 << 14)
    return np.round(special.betaincinv(alpha, alpha, steps) * (1 << 16)) / (1 << 16)
