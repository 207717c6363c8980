"""Random rotation, translation, scaling and shear."""

from typing import Annotated, Literal

import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import box_moves, geometry, pixel_values
from pipeline.data.augment.moves import moves


@register
@moves("image", "boxes")
def affine(
    batch: Example,
    seeds: tf.Tensor,
    *,
    rotation: Annotated[float, (0, 180)] = 15.0,
    translation: Annotated[float, (0, 1)] = 0.0,
    scale: Annotated[tuple[float, float], "ascending", (0.01, 100)] = (1.0, 1.0),
    shear: Annotated[float, (0, 80)] = 0.0,
    interpolation: Literal["bilinear", "nearest"] = "bilinear",
    fill: Literal["zero", "edge", "reflect"] = "zero",
) -> Example:
    """Shears, scales and rotates each image around its center, then translates it.

    All amounts are drawn uniformly, from 1,025 values each. A box becomes the smallest
    one around its moved corners, which rotation and shear make larger than its object.

    Args:
        rotation: Largest angle in degrees, in both directions.
        translation: Largest shift along each axis, in both directions, as a fraction of
            that side.
        scale: Smallest and largest magnification.
        shear: Largest angle of the vertical lines in degrees, in both directions.
        interpolation: `bilinear` between the four nearest pixels, or the `nearest`
            pixel.
        fill: Values outside the image: `zero`, the nearest pixel (`edge`), or the image
            mirrored at its border pixels (`reflect`).
    """
    images = pixel_values.images_of(batch, "affine")
    height, width = images.shape[1:3]
    angle = np.radians(_steps(-rotation, rotation))
    # The same draw for both.
    sine = _choose(seeds, np.sin(angle), 0)
    cosine = _choose(seeds, np.cos(angle), 0)
    size = _choose(seeds, _steps(*scale), 1)
    slant = _choose(seeds, np.tan(np.radians(_steps(-shear, shear))), 2)
    down = _choose(seeds, _steps(-translation, translation) * height, 3)
    right = _choose(seeds, _steps(-translation, translation) * width, 4)
    # (row, column) -> (row, column + slant * row), times the size, rotated
    # counter-clockwise.
    rows = tf.stack([size * (cosine - sine * slant), -size * sine, down], axis=-1)
    columns = tf.stack([size * (sine + cosine * slant), size * cosine, right], axis=-1)
    matrix = tf.stack([rows, columns], axis=1)
    images = geometry.transform(images, geometry.inverse(matrix), interpolation, fill)
    if "boxes" in batch:
        batch = box_moves.replace(batch, _moved(batch["boxes"], matrix, height, width))
    return {**batch, "image": images}


def _moved(boxes: tf.Tensor, matrix: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """The boxes around the moved corners, float32 (batch, boxes, 4)."""
    middle = tf.constant([height / 2, width / 2])
    left, top, right, bottom = tf.unstack(boxes, axis=-1)
    corners = [
        tf.stack([y, x], axis=-1) - middle for y in (top, bottom) for x in (left, right)
    ]
    matrix = tf.cast(matrix, tf.float32)
    moved = []
    for corner in corners:
        linear = tf.matmul(corner, matrix[:, :, :2], transpose_b=True)
        moved.append(linear + matrix[:, None, :, 2] + middle)
    first = tf.reduce_min(tf.stack(moved), axis=0)
    last = tf.reduce_max(tf.stack(moved), axis=0)
    return tf.concat([first[..., ::-1], last[..., ::-1]], axis=-1)


def _steps(low: float, high: float) -> np.ndarray:
    return np.linspace(low, high, 1025)


def _choose(seeds: tf.Tensor, table: np.ndarray, number: int) -> tf.Tensor:
    index = draw.integers(seeds, len(table), draw=number)
    return tf.gather(tf.constant(table), index)
