"""Random mirroring."""

import tensorflow as tf

from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import _pixel_values


def flip(batch: Example, seeds: tf.Tensor, *, up_down: bool = False) -> Example:
    """Mirrors left and right, each image with probability 1/2.

    Args:
        batch: With `image`.
        seeds: One per example.
        up_down: Also mirrors top and bottom, independently with probability 1/2.
    """
    images = _pixel_values.of(batch, "flip")
    for axis in (1, 0) if up_down else (1,):
        chosen = draw.uniform(seeds, draw=1 - axis) < 0.5
        images = _pixel_values.either(chosen, tf.reverse(images, [axis + 1]), images)
    return {**batch, "image": images}
