"""Random crops, of the padded image or of a window that is resized."""

from typing import Annotated, Literal

import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import box_moves, geometry, pixel_values
from pipeline.data.augment.moves import OUTSIDE, moves
from pipeline.utils.errors import UsageError


@register
@moves("image", "mask", "boxes")
def crop(
    batch: Example,
    seeds: tf.Tensor,
    *,
    padding: Annotated[int, (0, None)] = 4,
    fill: Literal["zero", "reflect"] = "zero",
) -> Example:
    """Pads each side and crops a window of the original size at a random position.

    As He et al., "Deep residual learning", CVPR 2016, section 4.2, do for CIFAR. This
    equals a uniform shift by -padding ... +padding pixels along each axis, computed by
    two gathers without the padded image. A mask is shifted with its image; outside,
    its pixels do not count (255). Boxes are shifted and clipped.

    Args:
        padding: Pixels on each side; less than the image's shorter side.
        fill: Values of the padding: `zero`, or the image mirrored at its border
            (`reflect`).
    """
    images = pixel_values.images_of(batch, "crop")
    if padding >= min(images.shape[1:3]):
        height, width = images.shape[1:3]
        raise UsageError(
            f"crop: padding {padding} is too large for images of {height}x{width}"
        )
    mask = batch.get("mask")
    shifts: list[tf.Tensor] = []
    for axis in (1, 2):
        size = images.shape[axis]
        shift = draw.integers(seeds, 2 * padding + 1, draw=axis) - padding
        shifts.insert(0, -shift)  # x before y
        # (batch, size)
        index = tf.range(size, dtype=tf.int64)[None, :] + shift[:, None]
        is_inside = (index >= 0) & (index < size)
        index = tf.abs(index)
        index = (size - 1) - tf.abs((size - 1) - index)
        if fill == "zero":
            # A line of zeros for all positions outside; a mask would be slower.
            index = tf.where(is_inside, index, size)
            images = tf.pad(images, [(0, int(i == axis)) for i in range(4)])
        images = tf.gather(images, index, axis=axis, batch_dims=1)
        if mask is not None:
            padding_of_mask = [(0, int(i == axis)) for i in range(3)]
            mask = tf.pad(mask, padding_of_mask, constant_values=OUTSIDE)
            mask = tf.gather(mask, index, axis=axis, batch_dims=1)
    if mask is not None:
        batch = {**batch, "mask": mask}
    offset = tf.stack(shifts, axis=1)
    batch = box_moves.transform(batch, tf.ones_like(offset), offset)
    return {**batch, "image": images}


@register
@moves("image", "boxes")
def random_resized_crop(
    batch: Example,
    seeds: tf.Tensor,
    *,
    scale: Annotated[tuple[float, float], "ascending", (1e-6, 1)] = (0.08, 1.0),
    ratio: Annotated[tuple[float, float], "ascending", (1e-3, 1e3)] = (0.75, 1.3333),
    probability: Annotated[float, (0, 1)] = 1.0,
) -> Example:
    """Crops a window of random area, shape and position, and enlarges it to full size.

    Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6. A side that
    would be longer than the image is cut, while other implementations draw again.
    Bilinear; as the window is never larger than the image, antialiasing would change
    nothing. Boxes are moved and clipped.

    Args:
        scale: Smallest and largest fraction of the area, drawn uniformly.
        ratio: Smallest and largest ratio of width to height in pixels, drawn
            log-uniformly.
        probability: Probability that an image is changed.
    """
    images = pixel_values.images_of(batch, "random_resized_crop")
    height, width = images.shape[1:3]
    # From tables: powers and exponentials are rounded differently on different devices.
    root = draw.choice(
        seeds, np.sqrt(np.linspace(*scale, 1024) * height * width), draw=1
    )
    low, high = np.log(ratio)
    slope = draw.choice(seeds, np.exp(np.linspace(low, high, 1024) / 2), draw=2)
    chosen = draw.uniform(seeds) < probability

    def window(size: int, length: tf.Tensor, number: int) -> tuple[tf.Tensor, ...]:
        """The start and the length of the window along an axis."""
        length = tf.clip_by_value(tf.cast(tf.round(length), tf.int64), 1, size)
        length = tf.where(chosen, length, tf.cast(size, tf.int64))
        return draw.integers(seeds, size - length + 1, draw=number), length

    top, heights = window(height, root / slope, number=3)
    left, widths = window(width, root * slope, number=4)
    images = geometry.windows(images, top, left, heights, widths)
    size = tf.cast(tf.stack([widths, heights], axis=1), tf.float32)
    zoom = (width, height) / size
    start = tf.cast(tf.stack([left, top], axis=1), tf.float32)
    return {**box_moves.transform(batch, zoom, -start * zoom), "image": images}
