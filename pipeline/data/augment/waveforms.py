"""Recordings of a batch, for augmentations: int16, zeros at the end are padding."""

import tensorflow as tf

from pipeline.contracts import Example
from pipeline.utils.errors import UsageError


def recordings_of(batch: Example, operation: str) -> tf.Tensor:
    """The recordings of a batch, int16 (batch, samples).

    Raises UsageError naming the operation if there are no recordings.
    """
    if "audio" not in batch:
        raise UsageError(
            f"--data.augment: {operation} changes recordings, but the examples have no"
            " recordings"
        )
    return batch["audio"]


def lengths(recordings: tf.Tensor) -> tf.Tensor:
    """Samples of each recording up to its last one that is not zero, int64 (batch,)."""
    order = tf.range(1, recordings.shape[1] + 1, dtype=tf.int64)
    is_sound = tf.cast(tf.not_equal(recordings, 0), tf.int64)
    return tf.reduce_max(is_sound * order, axis=1)


def to_int16(samples: tf.Tensor) -> tf.Tensor:
    """Rounds and clips float32 samples."""
    return tf.cast(tf.round(tf.clip_by_value(samples, -32768.0, 32767.0)), tf.int16)
