"""Mosaics of four images with their boxes."""

from typing import Annotated

import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import box_moves, pixel_values
from pipeline.data.augment.moves import moves
from pipeline.utils.errors import UsageError

_FIELDS = ("boxes", "box_labels", "box_ignored")


@register
@moves("image", "boxes")
def mosaic(
    batch: Example,
    seeds: tf.Tensor,
    *,
    probability: Annotated[float, (0, 1)] = 0.5,
) -> Example:
    """Replaces three quarters of each image by those of three other images.

    Bochkovskiy, Wang, Liao, "YOLOv4", arXiv 2004.10934, section 3.3. The quarters meet
    at a random point, from a quarter to three quarters of height and width; unlike
    there, images keep their scale, which other augmentations change. The partners of
    position i are i xor 1, 2 and 3. An image is not changed if its mosaic had more
    boxes than there is room for.

    Args:
        batch: Contains `image`, `boxes`, `box_labels` and `box_ignored`.
        probability: Probability that an image is changed.
    """
    images = pixel_values.images_of(batch, "mosaic")
    if "boxes" not in batch:
        raise UsageError(
            "--data.augment: mosaic joins images with boxes, but the examples have no"
            " boxes"
        )
    if images.shape[0] is None or images.shape[0] % 4:
        raise UsageError(
            "--data.augment: mosaic joins four examples of a micro-batch, which has"
            f" {images.shape[0]} examples; --train.batch-size divided by the number of"
            " replicas and by --train.accumulate must be a multiple of 4"
        )
    height, width = images.shape[1:3]
    row = _point(seeds, height, 1)
    column = _point(seeds, width, 2)
    is_top = tf.range(height, dtype=tf.int64)[None] < row[:, None]
    is_left = tf.range(width, dtype=tf.int64)[None] < column[:, None]
    center = tf.cast(tf.stack([column, row], axis=1), tf.float32)
    start = tf.zeros_like(center)
    end = tf.ones_like(center) * (width, height)
    joined = images
    parts = []
    for number in range(4):
        right, bottom = number % 2, number // 2
        rows = ~is_top if bottom else is_top
        columns = ~is_left if right else is_left
        other = {name: _partners(batch[name], number) for name in _FIELDS}
        other["image"] = _partners(images, number)
        joined = pixel_values.in_rectangle(rows, columns, other["image"], joined)
        first = tf.where([bool(right), bool(bottom)], center, start)
        last = tf.where([bool(right), bool(bottom)], end, center)
        limits = tf.concat([first, last], axis=1)
        parts.append(box_moves.replace(other, other["boxes"], limits))
    all_boxes = {
        name: tf.concat([part[name] for part in parts], axis=1) for name in _FIELDS
    }
    room = batch["boxes"].shape[1]
    is_padding = all_boxes["box_labels"] < 0
    count = tf.math.count_nonzero(~is_padding, axis=1)
    chosen = (draw.uniform(seeds) < probability) & (count <= room)
    order = tf.argsort(tf.cast(is_padding, tf.int32), axis=1, stable=True)[:, :room]
    result = {**batch, "image": pixel_values.select(chosen, joined, images)}
    for name, values in all_boxes.items():
        values = tf.gather(values, order, batch_dims=1)
        mask = tf.reshape(chosen, (-1, *[1] * (values.shape.rank - 1)))
        result[name] = tf.where(mask, values, batch[name])
    return result


def _point(seeds: tf.Tensor, size: int, number: int) -> tf.Tensor:
    """A random position in the middle half of an axis, int64 (batch,)."""
    return size // 4 + draw.integers(seeds, max(size // 2, 1), draw=number)


def _partners(values: tf.Tensor, number: int) -> tf.Tensor:
    """Position i gets the value at i xor `number`."""
    groups = tf.reshape(values, (-1, 4, *values.shape[1:]))
    order = [position ^ number for position in range(4)]
    return tf.reshape(tf.gather(groups, order, axis=1), tf.shape(values))
