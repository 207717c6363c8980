"""MixUp: blends each image with another image."""

from typing import Annotated

import tensorflow as tf

from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import _pairs, _pixel_values


def mixup(
    batch: Example, seeds: tf.Tensor, *, alpha: Annotated[float, (0.01, 100)] = 0.2
) -> Example:
    """A weighted mean of two images; the task weights both labels in the same way.

    Zhang et al., "mixup: beyond empirical risk minimization", ICLR 2018, with a separate weight for
    each example. The partner of position i of a micro-batch is i xor 1.

    Args:
        batch: With `image` and `label`; `partner_label` and `share` are added (float32, (batch,)):
            the weight of the original image.
        seeds: One per example.
        alpha: The share is Beta(alpha, alpha) distributed.
    """
    batch = _pairs.labelled(batch, "mixup")
    images = batch["image"]
    share = draw.choice(seeds, _pairs.shares(alpha))
    own, other = (tf.cast(i, tf.float32) for i in (images, _pairs.swapped(images)))
    mixed = own * _pixel_values.each(share) + other * _pixel_values.each(1 - share)
    return {**batch, "image": _pixel_values.restore(mixed, images.dtype), "share": share}
