"""A source of random pictures in memory, one of which may be damaged."""

import numpy as np
import tensorflow as tf
from toy_problem import CLASSES, SIDE, TASK, loaded

from pipeline.contracts import Info, Source

COUNT = 40


class Pictures(Source):
    """Images in memory; if `damaged` is given, as PNG files of which that one is
    truncated.
    """

    def __init__(self, damaged=None, made_of="these"):
        self.made_of = made_of
        pixels = np.random.default_rng(0).integers(
            0, 256, (COUNT, SIDE, SIDE, 1), np.uint8
        )
        self._images, image = (
            tf.constant(pixels),
            tf.TensorSpec((SIDE, SIDE, 1), tf.uint8),
        )
        if damaged is not None:
            files = [tf.io.encode_png(picture).numpy() for picture in pixels]
            files[damaged] = files[damaged][:-30]
            self._images, image = tf.constant(files), tf.TensorSpec((), tf.string)
        number = tf.TensorSpec((), tf.int64)
        self.info = Info(
            splits={"train": COUNT},
            fields={"id": number, "image": image, "label": number},
            class_names=("a", "b", "c"),
        )

    def _example(self, position):
        label = position % CLASSES
        return {"id": position + 100, "image": self._images[position], "label": label}

    def reader(self, split):
        rows = tf.range(COUNT, dtype=tf.int64)  # of the place where the reader is made
        return lambda position: self._example(rows[position])

    def fingerprint(self):
        return self.made_of

    def location(self, id):
        return f"cats/{id}.png"


def load(source, excluded=(), **options):
    """Splits and decisions of a source, a quarter of it for validation."""
    return loaded(source, TASK, excluded, **{"validation": 0.25, "test": 0, **options})
