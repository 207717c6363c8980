"""Losses of Keras by name: one finite float32 number per example."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.config import registry
from pipeline.config.sections import TrainConfig
from pipeline.training import model_builder

# A loss, and the target that it suits.
LOSSES = [
    ("categorical_crossentropy", "classes"),
    ("categorical_focal_crossentropy", "classes"),
    ("crossentropy", "classes"),
    ("ce", "classes"),
    ("bce", "classes"),
    ("kld", "classes"),
    ("binary_crossentropy", "labels"),
    ("binary_focal_crossentropy", "labels"),
    ("huber", "number"),
    ("mae", "numbers"),
]
CLASSES = {"class_names": ["a", "b", "c"]}
METADATA = {
    "classes": {**CLASSES, "target": "classes"},
    "labels": {**CLASSES, "target": "labels"},
    "number": {"target": "number"},
    "numbers": {"target": "number", "target_shape": [3]},
}
NUMBERS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
ONE_HOT = np.eye(3, dtype=np.float32)[np.arange(8) % 3]
SEVERAL = (NUMBERS > 0).astype(np.float32)
# Target -> (y, outputs) as it and its network give them.
BATCHES = {
    "classes": [
        (ONE_HOT, NUMBERS),
        # After mixup and cutmix.
        (tf.nn.softmax(NUMBERS), NUMBERS),
        # Of a model that is sure, and wrong.
        (ONE_HOT, 1e4 * NUMBERS),
    ],
    "labels": [(SEVERAL, NUMBERS[::-1]), (SEVERAL, -1e4 * NUMBERS)],
    "number": [
        (NUMBERS[:, :1], NUMBERS[:, 1:2]),
        (1e4 * NUMBERS[:, :1], NUMBERS[:, 1:2]),
    ],
    "numbers": [(NUMBERS, NUMBERS[::-1]), (1e4 * NUMBERS, NUMBERS)],
}


def loss_of(name, target):
    """The loss as a step calls it."""
    metadata = {"input": "features", "feature_names": ["a"], **METADATA[target]}
    task = registry.call("tasks", "supervised", {}, metadata)
    return model_builder._loss(task, TrainConfig(loss=name))


@pytest.mark.parametrize(("name", "target"), LOSSES)
def test_one_finite_number_per_example(name, target):
    loss = loss_of(name, target)
    for y, outputs in BATCHES[target]:
        y, outputs = tf.constant(y), tf.Variable(outputs)
        with tf.GradientTape() as tape:
            losses = loss(y, outputs)
        assert losses.shape == (8,) and losses.dtype == tf.float32
        assert np.isfinite(losses).all() and (losses.numpy() >= 0).all()
        assert np.isfinite(tape.gradient(losses, outputs)).all()
        assert loss(y, tf.cast(outputs, tf.float16)).dtype == tf.float32
        half = loss(y[:4], tf.constant(outputs)[:4])
        np.testing.assert_allclose(
            half, losses[:4], rtol=1e-5, atol=1e-6, err_msg="examples interact"
        )


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pair
        if pair[0] == "crossentropy"
        else pytest.param(*pair, marks=pytest.mark.long)
        for pair in LOSSES
    ],
)
def test_xla_gives_the_same_losses(name, target):
    loss = loss_of(name, target)
    for y, outputs in BATCHES[target]:
        compiled = tf.function(loss, jit_compile=True)(tf.constant(y), outputs)
        np.testing.assert_allclose(compiled, loss(y, outputs), rtol=1e-4, atol=1e-5)
