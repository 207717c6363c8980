"""Random and alternating flips."""

import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import box_moves, pixel_values
from pipeline.data.augment.moves import moves


@register
@moves("image", "mask", "boxes")
def flip(batch: Example, seeds: tf.Tensor, *, up_down: bool = False) -> Example:
    """Flips each image, with its mask or boxes, horizontally with probability 1/2.

    Args:
        up_down: Also flip vertically, independently, with probability 1/2.
    """
    pixel_values.images_of(batch, "flip")
    chosen = draw.uniform(seeds, draw=0) < 0.5
    batch = _reverse(batch, chosen, axis=2)
    if up_down:
        chosen = draw.uniform(seeds, draw=1) < 0.5
        batch = _reverse(batch, chosen, axis=1)
    return batch


def _reverse(batch: Example, chosen: tf.Tensor, axis: int) -> Example:
    """Reverses an axis of the chosen images, masks and boxes."""
    images = batch["image"]
    images = pixel_values.select(chosen, tf.reverse(images, [axis]), images)
    batch = {**batch, "image": images}
    if "mask" in batch:
        mask = batch["mask"]
        mask = tf.where(chosen[:, None, None], tf.reverse(mask, [axis]), mask)
        batch["mask"] = mask
    if "boxes" in batch:
        left, top, right, bottom = tf.unstack(batch["boxes"], axis=-1)
        height, width = images.shape[1:3]
        if axis == 2:
            boxes = tf.stack([width - right, top, width - left, bottom], axis=-1)
        else:
            boxes = tf.stack([left, height - bottom, right, height - top], axis=-1)
        boxes = tf.where(chosen[:, None, None], boxes, batch["boxes"])
        batch = box_moves.replace(batch, boxes)
    return batch


@register
@moves("image", "mask", "boxes")
def alternating_flip(batch: Example, seeds: tf.Tensor) -> Example:
    """Flips each image, with its mask or boxes, horizontally in every other epoch.

    Half of the images start flipped. Jordan, "94% on CIFAR-10 in 3.29 seconds on a
    single GPU", arXiv 2404.00498, section 3.6: two consecutive epochs show both
    versions of every image, while `flip` shows the same version again half of the time.
    The first version is drawn with a seed that is the same in all epochs; `seeds` is
    unused.

    Args:
        batch: Contains `image`, `epoch` and `lasting_seed` (int64, (batch,)).
    """
    pixel_values.images_of(batch, "alternating_flip")
    start = draw.integers(batch["lasting_seed"], 2)
    chosen = (start + batch["epoch"]) % 2 == 1
    return _reverse(batch, chosen, axis=2)
