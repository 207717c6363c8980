"""Datasets without TensorFlow's autotuner, which makes the end of a pass wait."""

import tensorflow as tf


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same dataset; `AUTOTUNE` in it means all cores from the start, at most 16.

    TensorFlow 2.21 starts a thread that tunes each iterator, even one in which every number is
    given. It sleeps 10 ms, then twice as long each time, up to a minute, and about every second
    time it does not hear that the iterator is to be deleted: the deletion waits until it wakes,
    as long again as the pass itself took (deleted after 3.0 s: 0, 0, 2.1 and 2.1 s). Two replicas
    on two cores trained at half their speed by it (`benchmarks/parity.md`).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
