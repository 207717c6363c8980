"""Moves the boxes of a batch with its images.

Boxes are left, top, right and bottom in pixels of the image, float32 (batch, boxes, 4),
where pixel i reaches from i to i + 1; `box_labels` are -1 for padding.
"""

import tensorflow as tf

from pipeline.contracts import Example

_MIN_SHARE = 0.25  # share of a box that must remain in the image to count


def transform(batch: Example, scale: tf.Tensor, offset: tf.Tensor) -> Example:
    """Multiplies and shifts boxes by (x, y), float32 (batch, 2), if there are any."""
    if "boxes" not in batch:
        return batch
    scales = tf.tile(tf.cast(scale, tf.float32), [1, 2])[:, None]
    offsets = tf.tile(tf.cast(offset, tf.float32), [1, 2])[:, None]
    return replace(batch, batch["boxes"] * scales + offsets)


def replace(
    batch: Example, boxes: tf.Tensor, limits: tf.Tensor | None = None
) -> Example:
    """The batch with these boxes, clipped.

    Boxes of which less than a quarter remains no longer count, because parts of them
    are still visible; those outside become padding.

    Args:
        batch: Its labels belong to the boxes.
        boxes: float32 (batch, boxes, 4).
        limits: left, top, right, bottom, float32 (batch, 4); None: those of the image.
    """
    height, width = batch["image"].shape[1:3]
    if limits is None:
        limits = tf.constant([[0, 0, width, height]], tf.float32)
    first, last = limits[:, None, :2], limits[:, None, 2:]
    clipped = tf.concat(
        [
            tf.clip_by_value(boxes[..., :2], first, last),
            tf.clip_by_value(boxes[..., 2:], first, last),
        ],
        axis=-1,
    )
    share = areas(clipped) / tf.maximum(areas(boxes), 1e-6)
    labels = tf.where(share > 0, batch["box_labels"], -1)
    is_ignored = (batch["box_ignored"] > 0) | (share < _MIN_SHARE)
    return {
        **batch,
        "boxes": tf.where((labels >= 0)[..., None], clipped, 0.0),
        "box_labels": labels,
        "box_ignored": tf.cast(is_ignored, batch["box_ignored"].dtype),
    }


def areas(boxes: tf.Tensor) -> tf.Tensor:
    """Areas of boxes (..., 4)."""
    return tf.reduce_prod(tf.maximum(boxes[..., 2:] - boxes[..., :2], 0.0), axis=-1)
