"""Random rotation, translation, scaling and shear."""

from typing import Annotated, Literal

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import _geometry, _pixel_values


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

    All amounts are drawn uniformly, from 1,025 values each.

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
    images = _pixel_values.of(batch, "affine")
    height, width = images.shape[1:3]
    angle = np.radians(_steps(-rotation, rotation))
    turn = draw.integers(seeds, len(angle), draw=0)
    sine, cosine = (tf.gather(tf.constant(f(angle)), turn) for f in (np.sin, np.cos))
    size = _drawn(seeds, _steps(*scale), 1)
    slant = _drawn(seeds, np.tan(np.radians(_steps(-shear, shear))), 2)
    down = _drawn(seeds, _steps(-translation, translation) * height, 3)
    right = _drawn(seeds, _steps(-translation, translation) * width, 4)
    # (row, column) -> (row, column + slant * row), times the size, rotated
    # counter-clockwise.
    rows = tf.stack([size * (cosine - sine * slant), -size * sine, down], axis=-1)
    columns = tf.stack([size * (sine + cosine * slant), size * cosine, right], axis=-1)
    matrix = tf.stack([rows, columns], axis=1)
    turned = _geometry.transform(images, _geometry.inverse(matrix), interpolation, fill)
    return {**batch, "image": turned}


def _steps(low: float, high: float) -> np.ndarray:
    return np.linspace(low, high, 1025)


def _drawn(seeds: tf.Tensor, table: np.ndarray, number: int) -> tf.Tensor:
    return tf.gather(tf.constant(table), draw.integers(seeds, len(table), draw=number))
