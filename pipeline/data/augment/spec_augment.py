"""Random covering of bands and windows of spectrograms."""

from typing import Annotated

import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment.waveforms import recordings_of


@register
def spec_augment(
    batch: Example,
    seeds: tf.Tensor,
    *,
    bands: Annotated[float, (0, 1)] = 0.2,
    times: Annotated[float, (0, 1)] = 0.1,
    count: Annotated[int, (1, 10)] = 2,
) -> Example:
    """Covers bands and windows of a spectrogram by its mean.

    Park et al., "SpecAugment", Interspeech 2019, without warping of time. Adds the
    intervals `covered_bands` and `covered_times`, float32 (batch, count, 2), as shares
    of all bands and of all windows.

    Args:
        bands: Largest share of the bands that an interval covers.
        times: Largest share of the windows that an interval covers.
        count: Intervals of bands, and as many of windows.
    """
    recordings_of(batch, "spec_augment")
    intervals = {}
    for number, (name, largest) in enumerate({"bands": bands, "times": times}.items()):
        own = draw.fold(draw.fold(seeds, number)[:, None], tf.range(count))
        width = draw.uniform(own) * largest
        start = draw.uniform(own, draw=1) * (1 - width)
        intervals[f"covered_{name}"] = tf.stack([start, start + width], axis=2)
    return {**batch, **intervals}
