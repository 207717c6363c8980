"""Random translation with padding."""

from typing import Annotated, Literal

import tensorflow as tf

from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import _pixel_values
from pipeline.utils.errors import UsageError


def crop(
    batch: Example,
    seeds: tf.Tensor,
    *,
    padding: Annotated[int, (0, None)] = 4,
    fill: Literal["zero", "reflect"] = "zero",
) -> Example:
    """Pads each side and crops a window of the original size at a random position.

    As He et al., "Deep residual learning", CVPR 2016, section 4.2, do for CIFAR. This equals a
    uniform shift by -padding ... +padding pixels along each axis, computed by two gathers without
    the padded image.

    Args:
        padding: Pixels on each side; less than the image's shorter side.
        fill: Values of the padding: `zero`, or the image mirrored at its border (`reflect`).
    """
    images = _pixel_values.of(batch, "crop")
    if padding >= min(images.shape[1:3]):
        height, width = images.shape[1:3]
        raise UsageError(f"crop: padding {padding} is too large for images of {height}x{width}")
    for axis in (1, 2):
        size = images.shape[axis]
        shift = draw.integers(seeds, 2 * padding + 1, draw=axis) - padding
        index = tf.range(size, dtype=tf.int64)[None, :] + shift[:, None]  # (batch, size)
        inside = (index >= 0) & (index < size)
        index = tf.abs(index)
        index = (size - 1) - tf.abs((size - 1) - index)
        if fill == "zero":
            # One more line of zeros for all positions outside; a mask would be slower.
            index = tf.where(inside, index, size)
            images = tf.pad(images, [(0, int(i == axis)) for i in range(4)])
        images = tf.gather(images, index, axis=axis, batch_dims=1)
    return {**batch, "image": images}
