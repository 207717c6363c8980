"""Random changes of recordings: position, loudness, noise and speed."""

from typing import Annotated

import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment.waveforms import lengths, recordings_of, to_int16


@register
def time_shift(
    batch: Example,
    seeds: tf.Tensor,
    *,
    share: Annotated[float, (0, 1)] = 0.1,
) -> Example:
    """Moves a recording in time; what leaves its ends is lost, and silence follows.

    Args:
        share: Largest distance in either direction, as a share of the length.
    """
    recordings = recordings_of(batch, "time_shift")
    size = recordings.shape[1]
    largest = round(share * size)
    shift = draw.integers(seeds, 2 * largest + 1) - largest
    index = tf.range(size, dtype=tf.int64)[None, :] + shift[:, None]
    # A sample of silence for all positions outside.
    index = tf.where((index >= 0) & (index < size), index, size)
    padded = tf.pad(recordings, [[0, 0], [0, 1]])
    return {**batch, "audio": tf.gather(padded, index, axis=1, batch_dims=1)}


@register
def gain(
    batch: Example,
    seeds: tf.Tensor,
    *,
    decibels: Annotated[tuple[float, float], "ascending", (-60, 60)] = (-12.0, 6.0),
) -> Example:
    """Makes a recording louder or softer; samples beyond 16 bits are clipped.

    The model's spectrograms do not depend on the loudness, except for clipping and
    rounding; a network that reads waveforms does.

    Args:
        decibels: Least and most change.
    """
    recordings = recordings_of(batch, "gain")
    table = 10.0 ** (np.linspace(*decibels, 1024) / 20)
    factor = draw.choice(seeds, table)
    samples = tf.cast(recordings, tf.float32) * factor[:, None]
    return {**batch, "audio": to_int16(samples)}


@register
def noise(
    batch: Example,
    seeds: tf.Tensor,
    *,
    decibels: Annotated[tuple[float, float], "ascending", (-20, 100)] = (10.0, 40.0),
    probability: Annotated[float, (0, 1)] = 0.5,
) -> Example:
    """Adds white noise to a recording, up to its end.

    Args:
        decibels: Smallest and largest ratio of the power of the recording to that of
            the noise.
        probability: Probability that a recording is changed.
    """
    recordings = recordings_of(batch, "noise")
    size = recordings.shape[1]
    samples = tf.cast(recordings, tf.float32)
    length = lengths(recordings)
    # In float64, sums of squares of integers are exact, in any order.
    power = tf.reduce_sum(tf.square(tf.cast(recordings, tf.float64)), axis=1)
    power /= tf.maximum(tf.cast(length, tf.float64), 1.0)
    ratio = draw.choice(seeds, 10.0 ** (-np.linspace(*decibels, 1024) / 20))
    is_changed = draw.uniform(seeds, draw=1) < probability
    # Uniform numbers from -1 to 1 have the power 1/3.
    scale = tf.sqrt(3.0 * tf.cast(power, tf.float32)) * ratio
    scale = tf.where(is_changed, scale, 0.0)
    order = tf.range(size, dtype=tf.int64)
    values = 2 * draw.uniform(draw.fold(seeds, 2)[:, None] + order) - 1
    is_sound = tf.cast(order < length[:, None], tf.float32)
    return {**batch, "audio": to_int16(samples + values * scale[:, None] * is_sound)}


@register
def speed(
    batch: Example,
    seeds: tf.Tensor,
    *,
    factor: Annotated[tuple[float, float], "ascending", (0.25, 4)] = (0.9, 1.1),
) -> Example:
    """Plays a recording faster and higher, or slower and lower.

    Ko et al., "Audio augmentation for speech recognition", Interspeech 2015. Samples
    are interpolated linearly; what no longer fits is cut off.

    Args:
        factor: Lowest and highest speed.
    """
    recordings = recordings_of(batch, "speed")
    size = recordings.shape[1]
    speeds = draw.between(seeds, *factor)
    # Multiples of 2**-10, so that positions are exact in whole numbers.
    steps = tf.cast(speeds * 1024, tf.int64)
    position = tf.range(size, dtype=tf.int64)[None, :] * steps[:, None]
    whole = tf.minimum(position // 1024, size)
    share = tf.cast(position % 1024, tf.float32) / 1024
    padded = tf.pad(recordings, [[0, 0], [0, 2]])
    left = tf.cast(tf.gather(padded, whole, axis=1, batch_dims=1), tf.float32)
    right = tf.cast(tf.gather(padded, whole + 1, axis=1, batch_dims=1), tf.float32)
    return {**batch, "audio": to_int16(left + share * (right - left))}
