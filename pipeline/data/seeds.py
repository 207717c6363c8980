"""A seed for each example, and random numbers drawn from it on any device.

The generator is SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014, figure 14. It needs only 64-bit integer arithmetic, which
gives the same bits on the CPU, on GPUs and under XLA; `tf.random.stateless_*` takes one
seed for a whole batch.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def _int64(value: int) -> tf.Tensor:
    """The int64 with the bits of an unsigned number; products wrap around alike."""
    return tf.constant(np.uint64(value).astype(np.int64))


def _shift(x: tf.Tensor, bits: int) -> tf.Tensor:
    """Logical right shift, while TensorFlow's shift of an int64 is arithmetic."""
    mask = _int64((1 << (64 - bits)) - 1)
    return tf.bitwise.right_shift(x, tf.cast(bits, tf.int64)) & mask


def fold(seeds: tf.Tensor, data: tf.Tensor | int) -> tf.Tensor:
    """New seeds that depend on both arguments, int64 of the broadcast shape."""
    z = (seeds ^ (tf.cast(data, tf.int64) * _int64(_GAMMA))) + _int64(_GAMMA)
    for bits, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        z = (z ^ _shift(z, bits)) * _int64(multiplier)
    return z ^ _shift(z, 31)


def stable_hash(content: bytes) -> int:
    """63 bits of a SHA-256 hash, as an id or group that never changes."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1


def example_seeds(seed: int, epoch: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """The seeds of examples in an epoch; `epoch` and `ids` are int64 (batch,)."""
    return fold(fold(fold(tf.zeros_like(ids), seed), epoch), ids)


def uniform(seeds: tf.Tensor, draw: int = 0) -> tf.Tensor:
    """Float32 numbers in [0, 1) with 24 random bits, one per seed.

    A seed gives independent numbers for each value of `draw`.
    """
    bits = _shift(fold(seeds, draw), 40)
    return tf.cast(bits, tf.float32) * (1.0 / (1 << 24))


def integers(
    seeds: tf.Tensor, below: tf.Tensor | int, draw: tf.Tensor | int = 0
) -> tf.Tensor:
    """int64 numbers from 0 to `below` - 1, one per seed.

    `below` may be a tensor with a number for each seed. The bias is less than `below` /
    2**32.
    """
    return tf.math.floormod(_shift(fold(seeds, draw), 32), tf.cast(below, tf.int64))


def normal(seeds: tf.Tensor, shape: Sequence[int], draw: int = 0) -> tf.Tensor:
    """Float32 numbers of a standard normal distribution, (batch, *shape).

    There is a seed for each example, int64 (batch,). The numbers are quantiles of
    2**23 equally likely probabilities, so at most 5.4. Unlike the bits of the other
    functions, they may differ by rounding from device to device.
    """
    positions = tf.range(math.prod(shape), dtype=tf.int64)
    bits = _shift(fold(fold(seeds, draw)[:, None], positions), 41)
    probabilities = (tf.cast(bits, tf.float32) + 0.5) * (1.0 / (1 << 23))
    return tf.reshape(tf.math.ndtri(probabilities), (-1, *shape))


def choice(seeds: tf.Tensor, table: np.ndarray, draw: int = 0) -> tf.Tensor:
    """Float32 values drawn uniformly from a 1-D table, one per seed.

    With a table of quantiles, this draws from any distribution, with the same bits on
    every device: NumPy computes roots, sines and exponentials when the table is made.
    """
    values = tf.constant(np.asarray(table), tf.float32)
    return tf.gather(values, integers(seeds, len(table), draw))


def between(seeds: tf.Tensor, low: float, high: float, draw: int = 0) -> tf.Tensor:
    """Float32 multiples of 2**-10 from `low` to `high`, inclusive, one per seed."""
    first = round(low * 1024)
    last = round(high * 1024)
    steps = first + integers(seeds, last - first + 1, draw)
    return tf.cast(steps, tf.float32) * (1.0 / 1024)
