"""Whole numbers at places of a file's bytes, read inside the graph."""

import tensorflow as tf


def raw_bytes(contents: tf.Tensor) -> tf.Tensor:
    """Of a string, shape (): uint8 of shape (length,)."""
    return tf.io.decode_raw(contents, tf.uint8)


def number(
    raw: tf.Tensor, at: tf.Tensor | int, count: int, little: tf.Tensor | bool = True
) -> tf.Tensor:
    """Unsigned number of `count` bytes at each place; behind the end stands the last byte.

    Args:
        raw: uint8, of shape (length,), at least one.
        at: Places, of any shape.
        count: Up to 7.
        little: Whether the lowest byte comes first.

    Returns:
        int64, of the shape of `at`.
    """
    places = tf.cast(at, tf.int64)[..., None] + tf.range(count, dtype=tf.int64)
    found = tf.gather(raw, tf.clip_by_value(places, 0, tf.size(raw, tf.int64) - 1))
    powers = tf.constant([256**power for power in range(count)], tf.int64)
    powers = tf.where(little, powers, tf.reverse(powers, [0]))
    return tf.reduce_sum(tf.cast(found, tf.int64) * powers, axis=-1)
