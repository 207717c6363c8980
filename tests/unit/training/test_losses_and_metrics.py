"""Registered losses and metrics against NumPy and Keras, and within a run."""

import functools

import numpy as np
import pytest
from engine_epoch import prepared
from metrics_by_numpy import METRICS, by_numpy
from toy_problem import task_of

from pipeline.config import registry
from pipeline.config.config import TrainConfig
from pipeline.utils.errors import UsageError

NUMBERS = {"feature_names": ["x"], "mean": [0.0], "deviation": [1.0]}


def examples(count=40, classes=3, missing=0):
    """(labels, shares of two mixed classes, logits); the last `missing` classes do not
    occur.
    """
    generator = np.random.default_rng(3)
    labels, others = generator.integers(0, classes - missing, (2, count))
    first = generator.uniform(0.51, 1, size=(count, 1))
    shares = first * np.eye(classes)[labels] + (1 - first) * np.eye(classes)[others]
    logits = generator.normal(scale=3, size=(count, classes))
    return labels, shares.astype(np.float32), logits.astype(np.float32)


def trained_weights(**train):
    model, batches = prepared(**train)
    registry.load("engines", "gradient_tape")(model, batches, None, [])
    return model.get_weights()


@pytest.mark.parametrize("delta", [0.5, 3.0])
def test_huber_is_its_formula(delta):
    generator = np.random.default_rng(4)
    y, outputs = generator.normal(scale=2, size=(2, 50, 1)).astype(np.float32)
    task = registry.load("tasks", "regression")(NUMBERS)
    loss = registry.load("losses", "huber")(NUMBERS, delta=delta).of(task)
    found = loss(y, outputs).numpy()
    error = np.abs(y - outputs)[:, 0].astype(np.float64)
    wanted = np.where(error <= delta, error**2 / 2, delta * (error - delta / 2))
    assert found.shape == (50,) and (error > delta).any() and (error < delta).any()
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_metric_of_classifications_is_refused_by_a_regression():
    with pytest.raises(UsageError, match="macro_recall.*classification"):
        registry.load("metrics", "macro_recall")(NUMBERS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_options": {"gamma": 1.0}}, "--train.loss-options needs --train.loss"),
        (
            {"loss": "hinge", "label_smoothing": 0.1},
            "only one of --train.loss and --train.label-s",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        TrainConfig(**options)


OWN = """
import tensorflow as tf
def mean(metadata):
    return lambda y, outputs: tf.reduce_mean(y * outputs)
def nothing(metadata):
    return 5
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "own.mean"}, r"own.mean .*one loss per example, .*got \(\)"),
        ({"metrics": {"own.nothing": {}}}, "own.nothing must return a Keras metric"),
    ],
)
def test_unsuitable_functions_are_refused(tmp_path, monkeypatch, options, message):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=message):
        trained_weights(**options)


@pytest.mark.parametrize("mixed", [False, True])
def test_metrics_are_those_of_numpy_without_padding(mixed):
    labels, shares, logits = examples(100, classes=10, missing=1)
    weight = (np.arange(100) < 80).astype(np.float32)  # the rest is padding
    y, wanted = (
        shares if mixed else np.eye(10, dtype=np.float32)[labels],
        by_numpy(labels[:80], logits[:80]),
    )
    for name, options in METRICS.items():
        task = task_of((8, 8, 1))
        metric = registry.load("metrics", name)(task.metadata, **options)
        if isinstance(metric, functools.partial):
            metric = metric(task, (10,))
        for part in (slice(64), slice(64, None)):
            metric.update_state(y[part], logits[part], sample_weight=weight[part])
        assert float(metric.result()) == wanted[metric.name]
