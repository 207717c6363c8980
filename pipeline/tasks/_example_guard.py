"""Checks in the graph that strings are tf.Examples, before TensorFlow's parser gets them.

That parser (2.21: tensorflow/core/util/example_proto_fast_parsing.cc) reads a length of 2**31
within an example as negative and ends the process: 30 bytes from any client are enough.
"""

import numpy as np
import tensorflow as tf

_REFUSED, _INTO, _OVER, _FOUR, _NUMBER = range(5)
# What follows a tag, at each depth: a message to enter, or bytes to skip
# (tensorflow/core/example/example.proto, feature.proto).
_LISTED = {0x0A: _OVER, 0x0D: _FOUR, 0x08: _NUMBER}  # bytes or packed numbers; one number
_TAGS = (
    {0x0A: _INTO},  # Example: features
    {0x0A: _INTO},  # Features: an entry
    {0x0A: _OVER, 0x12: _INTO},  # an entry: its key and its Feature
    {0x0A: _INTO, 0x12: _INTO, 0x1A: _INTO},  # Feature: a list of bytes, floats, integers
    _LISTED,
)
_MOST_PARTS = 10_000  # takes a second; a server sends the numbers of a list as one part
_WINDOW = 11  # a tag and the longest number


def examples(serialized: tf.Tensor) -> tf.Tensor:
    """bool (batch,): whether each string (batch,) is a tf.Example with consistent lengths.

    All strings are parsed in parallel, one part of each per step. This is stricter than a parser:
    unknown fields and more than 10,000 parts are rejected.
    """
    depths, size = len(_TAGS), tf.strings.length(serialized)
    kinds = np.zeros((depths, 256), np.int32)
    for number, tags in enumerate(_TAGS):
        kinds[number, list(tags)] = list(tags.values())

    def step(
        count: tf.Tensor, at: tf.Tensor, depth: tf.Tensor, ends: tf.Tensor, good: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        end = tf.gather(ends, depth, batch_dims=1)
        window = tf.strings.substr(serialized, at, tf.fill(tf.shape(at), _WINDOW)) + bytes(_WINDOW)
        window = tf.cast(tf.io.decode_raw(window, tf.uint8, fixed_length=_WINDOW), tf.int32)
        kind = tf.gather_nd(kinds, tf.stack([depth, window[:, 0]], axis=1))
        last = window[:, 1:] < 128  # whether a number ends with this byte
        length = 1 + tf.argmax(tf.cast(last, tf.int32), axis=1, output_type=tf.int32)
        # A number of at most four bytes; longer ones are not valid lengths.
        digits = tf.where(tf.range(4) < length[:, None], window[:, 1:5] % 128, 0)
        value = tf.reduce_sum(digits * 128 ** tf.range(4), axis=1)
        begin = at + 1 + length
        follows = tf.gather_nd(
            tf.stack([end + 1, begin + value, begin + value, at + 5, begin], axis=1),
            tf.stack([tf.range(tf.size(kind)), kind], axis=1),
        )
        counted = (kind == _INTO) | (kind == _OVER)
        fits = tf.reduce_any(last, axis=1) & (follows <= end) & ~(counted & (length > 4))
        over, into = at == end, (kind == _INTO) & (at != end)
        inner = tf.one_hot(depth + 1, depths, on_value=True, off_value=False, dtype=tf.bool)
        good &= over | fits
        ends = tf.where(inner & (into & good)[:, None], follows[:, None], ends)
        at = tf.where(over | ~good, at, tf.where(into, begin, follows))
        moved = tf.where(over, -1, tf.where(into, 1, 0))
        return count + 1, at, tf.where(good, tf.maximum(depth + moved, 0), depth), ends, good

    def is_running(
        count: tf.Tensor, at: tf.Tensor, depth: tf.Tensor, ends: tf.Tensor, good: tf.Tensor
    ) -> tf.Tensor:
        return (count < _MOST_PARTS) & tf.reduce_any(good & ((depth > 0) | (at < size)))

    start = (
        tf.constant(0),
        tf.zeros_like(size),
        tf.zeros_like(size),
        tf.repeat(size[:, None], depths, axis=1),
        tf.ones_like(size, tf.bool),
    )
    _, at, depth, _, good = tf.while_loop(is_running, step, start, parallel_iterations=1)
    return good & (depth == 0) & (at == size)
