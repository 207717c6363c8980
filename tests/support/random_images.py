"""Random images, with labels or as a batch, and the augmentations of images by name."""

import numpy as np
import tensorflow as tf

from pipeline.config import registry
from pipeline.data import seeds

# Those of recordings: data/augment/test_recordings.py.
OF_RECORDINGS = ("gain", "noise", "spec_augment", "speed", "time_shift")
# That of boxes: data/augment/test_moved_boxes.py.
OF_OTHER_INPUTS = (*OF_RECORDINGS, "word_dropout", "mosaic")
OPERATIONS = {
    name: registry.load("augment", name)
    for name in registry.names("augment")
    if name not in OF_OTHER_INPUTS
}


def images_and_labels(
    count: int = 60, shape: tuple[int, ...] = (6, 6, 1), classes: int = 3
):
    """Random images, and labels 0, 1, ..., 0, 1, ..."""
    generator = np.random.default_rng(7)
    images = generator.integers(0, 256, (count, *shape), np.uint8)
    return images, np.arange(count) % classes


def batch_of(count=64, shape=(9, 7, 3), dtype=np.uint8):
    """Random images, floats from 0 to 1, of examples 500, 501, ... in epoch 3; their
    seeds.
    """
    levels = np.random.default_rng(0).integers(1, 256, (count, *shape))
    images = (levels / (1 if dtype == np.uint8 else 255)).astype(dtype)
    ids = tf.range(500, 500 + count, dtype=tf.int64)
    epoch = tf.fill([count], tf.constant(3, tf.int64))
    own = seeds.example_seeds(1, epoch, ids)
    batch = {
        "image": tf.constant(images),
        "label": tf.range(count) % 10,
        "id": ids,
        "epoch": epoch,
    }
    return {**batch, "lasting_seed": seeds.fold(own, 99)}, own
