"""What training costs in counts, which no other process on the machine can change."""

import math

import numpy as np
import tensorflow as tf
from toy_problem import settings_of

from pipeline.data import batching, example_store, splits


def test_bytes_of_an_image_of_cifar10_that_are_sent_to_the_device():
    columns = {
        "id": tf.range(64, dtype=tf.int64),
        "image": tf.zeros((64, 32, 32, 3), tf.uint8),
        "label": tf.zeros(64, tf.int64),
    }

    def sent(store):
        split = splits.Split(store(columns), np.arange(64))
        batches = batching.training(
            split, settings_of(train={"batch_size": 32}).train, 0
        )
        return sum(
            math.prod(s.shape) * s.dtype.size
            for s in batches.dataset(0).element_spec.values()
        )

    # The pixels, and `id`, `label` and `epoch` of 8 bytes, `weight` of 4.
    assert sent(example_store.MemoryStore) == 32 * (3072 + 28)
    # `row` and `epoch` of 8 bytes, `weight` of 4.
    assert sent(example_store.DeviceStore) == 32 * 20
