"""Losses of Keras by name: one finite float32 number per example."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.config.sections import TrainConfig
from pipeline.training import model_builder

LOSSES = {
    "categorical_crossentropy": "image_classification",
    "categorical_focal_crossentropy": "image_classification",
    "crossentropy": "image_classification",
    "ce": "image_classification",
    "bce": "image_classification",
    "kld": "image_classification",
    "huber": "regression",
}
CLASSES = ["a", "b", "c"]
METADATA = {
    "image_classification": {"class_names": CLASSES, "image_shape": [8, 8, 1]},
    "regression": {"feature_names": ["a", "b"]},
}
NUMBERS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
LABELS = np.eye(3, dtype=np.float32)[np.arange(8) % 3]
# Task -> (y, outputs) as its `target` and its network give them.
BATCHES = {
    "image_classification": [
        (LABELS, NUMBERS),
        # After mixup and cutmix.
        (tf.nn.softmax(NUMBERS), NUMBERS),
        # Of a model that is sure, and wrong.
        (LABELS, 1e4 * NUMBERS),
    ],
    "regression": [
        (NUMBERS[:, :1], NUMBERS[:, 1:2]),
        (1e4 * NUMBERS[:, :1], NUMBERS[:, 1:2]),
    ],
}


class Known:
    """A task, of which a loss gets the metadata."""

    def __init__(self, name):
        self.metadata = METADATA[name]


def built(name, task):
    """The loss as a step calls it."""
    return model_builder._loss(Known(task), TrainConfig(loss=name), "none")


@pytest.mark.parametrize("name", LOSSES)
def test_one_finite_number_per_example(name):
    task = LOSSES[name]
    loss = built(name, task)
    for y, outputs in BATCHES[task]:
        y, outputs = tf.constant(y), tf.Variable(outputs)
        with tf.GradientTape() as tape:
            losses = loss(y, outputs)
        assert losses.shape == (8,) and losses.dtype == tf.float32
        assert np.isfinite(losses).all() and (losses.numpy() >= 0).all()
        assert np.isfinite(tape.gradient(losses, outputs)).all()
        compiled = tf.function(loss, jit_compile=True)(y, outputs)
        np.testing.assert_allclose(compiled, losses, rtol=1e-4, atol=1e-5)
        assert loss(y, tf.cast(outputs, tf.float16)).dtype == tf.float32
        half = loss(y[:4], tf.constant(outputs)[:4])
        np.testing.assert_allclose(
            half, losses[:4], rtol=1e-5, atol=1e-6, err_msg="examples interact"
        )
