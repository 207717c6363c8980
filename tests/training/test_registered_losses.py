"""The losses of the registry, against formulas in NumPy and Keras's own."""

import numpy as np
import pytest
import tensorflow as tf
from small import TASK
from update_rules import prepared

from pipeline.config import registry
from pipeline.config.config import Train
from pipeline.utils.errors import UsageError

CLASSES = TASK.metadata
NUMBERS = {"feature_names": ["x"], "mean": [0.0], "deviation": [1.0]}


def examples(count=40):
    """(labels, shares of two mixed classes, logits)."""
    generator = np.random.default_rng(3)
    labels, others = generator.integers(0, 3, (2, count))
    first = generator.uniform(size=(count, 1))
    shares = first * np.eye(3)[labels] + (1 - first) * np.eye(3)[others]
    logits = generator.normal(scale=3, size=(count, 3))
    return labels, shares.astype(np.float32), logits.astype(np.float32)


def focal_loss(shares, logits, gamma):
    """Equation 4 of the paper for several classes, each with its share, in float64."""
    odds = np.exp(logits.astype(np.float64))
    p = odds / odds.sum(axis=1, keepdims=True)
    return -(shares * (1 - p) ** gamma * np.log(p)).sum(axis=1)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_is_its_formula_for_labels_and_for_mixed_ones(gamma):
    labels, shares, logits = examples()
    loss = registry.load("losses", "focal")(CLASSES, gamma=gamma)
    for y, wanted in ((labels, np.eye(3)[labels]), (shares, shares)):
        found = loss(tf.constant(y), tf.constant(logits)).numpy()
        assert found.shape == (40,) and found.dtype == np.float32
        np.testing.assert_allclose(found, focal_loss(wanted, logits, gamma), rtol=1e-4, atol=1e-6)


def test_focal_with_gamma_0_is_the_cross_entropy_of_the_task():
    labels, shares, logits = examples()
    loss = registry.load("losses", "focal")(CLASSES, gamma=0.0)
    for y in (tf.constant(labels), tf.constant(shares)):
        np.testing.assert_allclose(loss(y, logits), TASK.loss()(y, logits), rtol=1e-5, atol=1e-6)
    ours, plain = (trained_weights(**options) for options in ({"loss": "focal"}, {}))
    zero = trained_weights(loss="focal", loss_options={"gamma": 0.0})
    for one, other in zip(zero, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    assert any((a != b).any() for a, b in zip(ours, plain, strict=True)), "2 is the default"


def trained_weights(**train):
    model, batches = prepared(**train)
    registry.load("engines", "gradient_tape")(model, batches, None, [])
    return model.get_weights()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_the_gradient_of_focal_is_finite_where_the_network_is_sure(gamma):
    """At p = 1 in float32 the derivative of (1 - p) ** gamma would be infinite."""
    logits = tf.constant([[60.0, 0.0, 0.0], [60.0, 0.0, 0.0], [1e4, -1e4, 0.0]])
    loss = registry.load("losses", "focal")(CLASSES, gamma=gamma)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = loss(tf.constant([0, 1, 1]), logits)
    assert losses[0] == 0 and float(losses[1]) == pytest.approx(60, rel=1e-5)
    assert np.isfinite(losses).all() and np.isfinite(tape.gradient(losses, logits)).all()


@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0])
def test_huber_is_its_formula(delta):
    generator = np.random.default_rng(4)
    y, outputs = generator.normal(scale=2, size=(2, 50, 1)).astype(np.float32)
    found = registry.load("losses", "huber")(NUMBERS, delta=delta)(y, outputs).numpy()
    error = np.abs(y - outputs)[:, 0].astype(np.float64)
    wanted = np.where(error <= delta, error**2 / 2, delta * (error - delta / 2))
    assert found.shape == (50,) and (error > delta).any() and (error < delta).any()
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize(("name", "metadata"), [("focal", NUMBERS), ("huber", CLASSES)])
def test_a_loss_of_another_kind_of_problem_is_refused(name, metadata):
    with pytest.raises(UsageError, match=f"--train.loss {name} is for .* only; remove it"):
        registry.load("losses", name)(metadata)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "focl"}, "unknown loss 'focl'; did you mean 'focal'"),
        ({"loss": "focal", "loss_options": {"gamma": 11}}, "gamma of focal must be a number from"),
        ({"loss": "huber", "loss_options": {"delta": 0}}, "delta of huber must be a number above"),
        ({"loss_options": {"gamma": 1.0}}, "--train.loss-options needs --train.loss"),
        ({"loss": "focal", "label_smoothing": 0.1}, "remove them, or --train.loss"),
        ({"loss": "focal", "class_weight": {"a": 2.0}}, "remove them, or --train.loss"),
    ],
)
def test_options_of_losses_that_do_not_fit_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Train(**options)


def test_a_loss_of_the_users_own_has_one_value_per_example(tmp_path, monkeypatch):
    (tmp_path / "own_losses.py").write_text(
        "import keras\n"
        "def mean(metadata):\n"
        "    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)\n"
        "def each(metadata, *, times: float = 1.0):\n"
        "    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)\n"
        "    return lambda y, outputs: times * loss(y, outputs)\n"
        "def nothing(metadata):\n"
        "    return 5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name, said in {
        "mean": r"one loss per example, .* returns \(\)",
        "nothing": "'int' object is not callable",
    }.items():
        with pytest.raises(UsageError, match=f"--train.loss own_losses.{name} .*{said}"):
            trained_weights(loss=f"own_losses.{name}")
    doubled = trained_weights(
        loss="own_losses.each", loss_options={"times": 2.0}, learning_rate=0.05
    )
    for one, other in zip(doubled, trained_weights(learning_rate=0.1), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
