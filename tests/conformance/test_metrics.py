"""Every metric is updated in compiled steps, ignores weight 0, and is reset by each
epoch.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from registered_functions import load

from pipeline.config import registry

METRICS = registry.names("metrics")
CLASSES = 7
# One-hot labels and logits; the second half is padding with other labels.
GENERATOR = np.random.default_rng(0)
LABELS = GENERATOR.integers(0, CLASSES, 40)
LOGITS = (
    GENERATOR.normal(size=(40, CLASSES)).astype(np.float32)
    + 2 * np.eye(CLASSES)[LABELS]
)


def one_hot(labels):
    return tf.one_hot(labels, CLASSES)


def new(name):
    return load("metrics", name)(
        {"class_names": [f"class {n}" for n in range(CLASSES)]}
    )


def result_of(metric, *parts, compiled=True):
    update = metric.update_state
    if compiled:
        update = tf.function(
            lambda *values: metric.update_state(*values) or 0,
            autograph=False,
            jit_compile=True,  # with XLA, a program contains the metrics
        )
    for part in parts:
        weight = np.ones(len(LABELS[part]), np.float32)
        update(one_hot(LABELS[part]), tf.constant(LOGITS[part], tf.float32), weight)
    return float(metric.result())


@pytest.mark.parametrize("name", METRICS)
def test_batches_add_up_and_reset_forgets(name):
    metric = new(name)
    assert isinstance(metric, keras.metrics.Metric)
    assert metric.name != "loss" and metric.name.isidentifier()
    assert new(name).name == metric.name, "the name must not depend on how many exist"
    whole = result_of(metric, np.s_[:])
    assert np.isfinite(whole) and 0 < whole <= 1
    metric.reset_state()
    parts = result_of(metric, np.s_[:7], np.s_[7:24], np.s_[24:])
    assert parts == pytest.approx(whole, rel=1e-6)
    assert result_of(new(name), np.s_[:], compiled=False) == pytest.approx(
        whole, rel=1e-6
    )


@pytest.mark.parametrize("name", METRICS)
def test_weight_0_counts_for_nothing_and_mixed_labels_as_the_larger_share(name):
    """After mixup and cutmix `y` is the share of each class."""
    shares = (
        0.7 * np.eye(CLASSES)[LABELS] + 0.3 * np.eye(CLASSES)[(LABELS + 1) % CLASSES]
    )
    weight = np.where(np.arange(40) < 20, 1.0, 0.0).astype(np.float32)
    padded = np.where(weight > 0, LABELS, LOGITS.argmin(axis=1))
    for y in (one_hot(padded), shares.astype(np.float32)):
        metric = new(name)
        metric.update_state(
            tf.constant(y), tf.constant(LOGITS, tf.float32), sample_weight=weight
        )
        expected = result_of(new(name), np.s_[:20], compiled=False)
        assert float(metric.result()) == pytest.approx(expected, rel=1e-6)
