"""Registered losses and metrics against NumPy and Keras, and within a run."""

import json

import numpy as np
import pytest
import tensorflow as tf
from small import TASK
from update_rules import prepared

from pipeline.config import registry
from pipeline.config.config import Train
from pipeline.fit import fit
from pipeline.utils.errors import UsageError

NUMBERS = {"feature_names": ["x"], "mean": [0.0], "deviation": [1.0]}
METRICS = {"top_k_accuracy": {"k": 3}, "macro_recall": {}}


def examples(count=40, classes=3, missing=0):
    """(labels, shares of two mixed classes, logits); the last `missing` classes do not occur."""
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


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_is_its_formula_for_labels_and_for_mixed_ones(gamma):
    """Equation 4 of the paper in float64; with gamma 0 it is the task's cross-entropy."""
    labels, shares, logits = examples()
    odds = np.exp(logits.astype(np.float64))
    p = odds / odds.sum(axis=1, keepdims=True)
    loss = registry.load("losses", "focal")(TASK.metadata, gamma=gamma)
    for y, wanted in ((labels, np.eye(3)[labels]), (shares, shares)):
        found = loss(tf.constant(y), tf.constant(logits)).numpy()
        assert found.shape == (40,) and found.dtype == np.float32
        formula = -(wanted * (1 - p) ** gamma * np.log(p)).sum(axis=1)
        np.testing.assert_allclose(found, formula, rtol=1e-4, atol=1e-6)
        if not gamma:
            plain = TASK.loss()(tf.constant(y), logits)
            np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_the_gradient_of_focal_is_finite_where_the_network_is_certain(gamma):
    """At p = 1 in float32 the derivative of (1 - p) ** gamma would be infinite."""
    logits = tf.constant([[60.0, 0.0, 0.0], [60.0, 0.0, 0.0], [1e4, -1e4, 0.0]])
    loss = registry.load("losses", "focal")(TASK.metadata, gamma=gamma)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = loss(tf.constant([0, 1, 1]), logits)
    assert losses[0] == 0 and float(losses[1]) == pytest.approx(60, rel=1e-5)
    assert np.isfinite(losses).all() and np.isfinite(tape.gradient(losses, logits)).all()


@pytest.mark.parametrize("delta", [0.5, 3.0])
def test_huber_is_its_formula(delta):
    generator = np.random.default_rng(4)
    y, outputs = generator.normal(scale=2, size=(2, 50, 1)).astype(np.float32)
    found = registry.load("losses", "huber")(NUMBERS, delta=delta)(y, outputs).numpy()
    error = np.abs(y - outputs)[:, 0].astype(np.float64)
    wanted = np.where(error <= delta, error**2 / 2, delta * (error - delta / 2))
    assert found.shape == (50,) and (error > delta).any() and (error < delta).any()
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_metric_of_classifications_is_refused_by_a_regression():
    with pytest.raises(UsageError, match="macro_recall is for classification only"):
        registry.load("metrics", "macro_recall")(NUMBERS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_options": {"gamma": 1.0}}, "--train.loss-options needs --train.loss"),
        (
            {"loss": "focal", "label_smoothing": 0.1},
            "use only one of --train.loss and --train.label-s",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Train(**options)


OWN = """
import keras
def mean(metadata):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
def nothing(metadata):
    return 5
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "own.mean"}, r"--train.loss own.mean .*one loss per example, .* got \(\)"),
        ({"metrics": {"own.nothing": {}}}, "own.nothing must return a Keras metric; got 5"),
        ({"metrics": {"top_k_accuracy": {"k": 3}}}, "k=3 is always 1 with 3 classes"),
    ],
)
def test_unsuitable_functions_are_refused(tmp_path, monkeypatch, options, message):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=message):
        trained_weights(**options)


def top_k(labels, logits, k):
    best = np.argsort(-logits, axis=1)[:, :k]
    return (best == labels[:, None]).any(axis=1).mean()


def macro_recall(labels, logits):
    right = logits.argmax(axis=1) == labels
    return np.mean([right[labels == label].mean() for label in np.unique(labels)])


def by_numpy(labels, logits):
    return {
        "top_3_accuracy": pytest.approx(top_k(labels, logits, 3), rel=1e-5),
        "macro_recall": pytest.approx(macro_recall(labels, logits), rel=1e-5),
    }


@pytest.mark.parametrize("mixed", [False, True])
def test_metrics_are_those_of_numpy_without_padding(mixed):
    labels, shares, logits = examples(100, classes=10, missing=1)
    weight = (np.arange(100) < 80).astype(np.float32)  # the rest is padding
    y, wanted = shares if mixed else labels, by_numpy(labels[:80], logits[:80])
    for name, options in METRICS.items():
        metadata = {"class_names": [str(n) for n in range(10)]}
        metric = registry.load("metrics", name)(metadata, **options)
        for part in (slice(64), slice(64, None)):
            metric.update_state(y[part], logits[part], sample_weight=weight[part])
        assert float(metric.result()) == wanted[metric.name]


def test_metrics_are_in_history_and_result(tmp_path):
    """The history is from padded batches; the result comes from all answers at once."""
    run = fit(
        "digits",
        run_directory=tmp_path / "run",
        data={"limit": 300},
        model={"name": "tiny"},
        train={"epochs": 2, "metrics": METRICS},
        export={"enabled": False},
        log={"progress": False, "tensorboard": False},
    )
    lines = [json.loads(line) for line in (run.directory / "log.jsonl").read_text().splitlines()]
    for split in ("validation", "test"):
        columns = run.splits[split].take(np.arange(len(run.splits[split])))
        images = run.task.prepare({"image": columns["image"]})["image"]
        wanted = by_numpy(columns["label"], run.network(images, training=False).numpy())
        found = json.loads((run.directory / "result.json").read_text())[split]
        assert {name: found[name] for name in wanted} == wanted
        if split == "validation":
            assert {name: run.history[f"val_{name}"][-1] for name in wanted} == wanted
    for name in ("top_3_accuracy", "val_macro_recall"):
        assert run.history[name] == [line[name] for line in lines]
