"""Seeds: the published generator, the same for an example in any batch."""

import numpy as np
import tensorflow as tf

from pipeline.data import seeds

MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """The reference in Python integers: Steele, Lea, Flood 2014."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_fold_is_splitmix64():
    # The first numbers of the generator with seed 0, as its authors' Java prints them.
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    states = [0, 1, -1, 2**62, -(2**63), 123456789]
    ours = seeds.fold(tf.constant(states, tf.int64), 0).numpy().view(np.uint64)
    assert [int(x) for x in ours] == [splitmix64(s & MASK) for s in states]


def test_the_seed_depends_on_run_epoch_and_id_and_on_nothing_else():
    ids = tf.range(100, dtype=tf.int64)
    together = seeds.example_seeds(5, tf.fill([100], tf.constant(3, tf.int64)), ids)
    alone = seeds.example_seeds(5, tf.constant([3], tf.int64), ids[40:41])
    assert together[40] == alone[0]
    epochs = tf.constant([*range(8)] * 8, tf.int64)
    several = [
        seeds.example_seeds(run, epochs, tf.sort(epochs)).numpy() for run in range(8)
    ]
    assert len(np.unique(several)) == 8**3, "permuted small numbers must not collide"


def test_numbers_are_evenly_spread():
    example_seeds = seeds.example_seeds(
        0, tf.zeros([100_000], tf.int64), tf.range(100_000, dtype=tf.int64)
    )
    numbers = seeds.uniform(example_seeds).numpy()
    assert numbers.dtype == np.float32 and numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, 50, (0, 1))[0]
    assert (
        (counts - 2000) ** 2 / 2000
    ).sum() < 90  # chi-square, 49 degrees, p = 0.0003
    second = seeds.uniform(example_seeds, draw=1).numpy()
    assert abs(np.corrcoef(numbers, second)[0, 1]) < 0.02
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.02
    dice = seeds.integers(example_seeds, 9).numpy()
    assert set(dice) == set(range(9))
    assert np.bincount(dice).min() > 10_500
