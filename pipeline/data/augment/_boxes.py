"""Bounding boxes, transformed along with their images.

`boxes` is float32 (batch, n, 4): ymin, xmin, ymax, xmax in [0, 1] of the image; `box_mask` or
`box_weight`, (batch, n), is 0 for padding.
"""

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example


def mirrored(boxes: tf.Tensor, axis: int) -> tf.Tensor:
    """Boxes of the image mirrored top to bottom (axis 0) or left to right (axis 1)."""
    top, left, bottom, right = tf.unstack(boxes, axis=-1)
    if axis == 0:
        top, bottom = 1 - bottom, 1 - top
    else:
        left, right = 1 - right, 1 - left
    return tf.stack([top, left, bottom, right], axis=-1)


def mapped(boxes: tf.Tensor, matrix: tf.Tensor, sides: np.ndarray) -> tf.Tensor:
    """The smallest upright boxes around the corners after an affine map.

    Args:
        boxes: float32 (batch, n, 4).
        matrix: float64 (batch, 2, 3): (row, column, 1) of an input pixel -> (row, column) in the
            output, both in pixels from the center of the image.
        sides: Height and width in pixels.
    """
    top, left, bottom, right = tf.unstack(tf.cast(boxes, tf.float64), axis=-1)
    corners = tf.stack(
        [tf.stack([y, x], axis=-1) for y in (top, bottom) for x in (left, right)], axis=-2
    )
    corners = (corners - 0.5) * sides  # (batch, n, 4, 2)
    turned = tf.einsum("bnck,bjk->bncj", corners, matrix[:, :, :2]) + matrix[:, None, None, :, 2]
    turned = turned / sides + 0.5
    ends = [tf.reduce_min(turned, axis=2), tf.reduce_max(turned, axis=2)]
    return tf.cast(tf.concat(ends, axis=-1), tf.float32)


def moved(batch: Example, boxes: tf.Tensor) -> Example:
    """The batch with these boxes, clipped to the image.

    A box whose center is outside the image is masked, as by Liu et al., "SSD: single shot multibox
    detector", ECCV 2016, section 2.2.
    """
    center = (boxes[..., :2] + boxes[..., 2:]) / 2
    inside = tf.reduce_all((center >= 0) & (center <= 1), axis=-1)
    batch = {**batch, "boxes": tf.clip_by_value(boxes, 0.0, 1.0)}
    for name in ("box_mask", "box_weight"):
        if name in batch:
            batch[name] = tf.where(inside, batch[name], tf.zeros_like(batch[name]))
    return batch
