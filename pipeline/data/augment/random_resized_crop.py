"""Random resized crop."""

from typing import Annotated

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import _geometry, _pixel_values


def random_resized_crop(
    batch: Example,
    seeds: tf.Tensor,
    *,
    scale: Annotated[tuple[float, float], "ascending", (1e-6, 1)] = (0.08, 1.0),
    ratio: Annotated[tuple[float, float], "ascending", (1e-3, 1e3)] = (0.75, 1.3333),
    probability: Annotated[float, (0, 1)] = 1.0,
) -> Example:
    """Crops a window of random area, shape and position, and resizes it to the image's size.

    Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6. A side that would be
    longer than the image's is cut to it, while other implementations draw again. Bilinear; as the
    window is never larger than the image, antialiasing would change nothing.

    Args:
        scale: Smallest and largest fraction of the area, drawn uniformly.
        ratio: Smallest and largest ratio of width to height in pixels, drawn log-uniformly.
        probability: Probability that an image is changed.
    """
    images = _pixel_values.of(batch, "random_resized_crop")
    height, width = images.shape[1:3]
    # From tables: powers and exponentials are rounded differently on different devices.
    root = draw.choice(seeds, np.sqrt(np.linspace(*scale, 1024) * height * width), draw=1)
    low, high = np.log(ratio)
    slope = draw.choice(seeds, np.exp(np.linspace(low, high, 1024) / 2), draw=2)
    chosen = draw.uniform(seeds) < probability
    starts, lengths = [], []
    for number, (size, length) in enumerate(((height, root / slope), (width, root * slope))):
        length = tf.clip_by_value(tf.cast(tf.round(length), tf.int64), 1, size)
        length = tf.where(chosen, length, tf.cast(size, tf.int64))
        starts.append(draw.integers(seeds, size - length + 1, draw=3 + number))
        lengths.append(length)
    return {**batch, "image": _geometry.windows(images, *starts, *lengths)}
