"""Every optimizer: follows the schedule, lowers a loss, comes back from its config, and
compiles with XLA.
"""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from registered_functions import load
from toy_problem import random

from pipeline.config import registry
from pipeline.config.sections import TrainConfig
from pipeline.training.optim.build import build_optimizer
from pipeline.training.optim.gradient_update import UpdateRule
from pipeline.training.optim.learning_rate import build_rate

OPTIMIZERS = registry.names("optimizers")
KERAS_OPTIMIZERS = [
    "adam",
    "nadam",  # has a step of its own
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in ("adafactor", "adamw", "lamb", "lion", "rmsprop", "sgd")
    ),
]
# The layers of a network: an input layer, a hidden one with its bias, the output layer.
SHAPES = [(6, 8), (8, 8), (8,), (8, 3)]


def stepped(optimizer, steps=5):
    """The variables after some steps of the gradient 2 (w - 1) of squared distances."""
    variables = [
        keras.Variable(random(s, n), name=f"v{n}") for n, s in enumerate(SHAPES)
    ]
    optimizer.build(variables)
    for _ in range(steps):
        optimizer.apply([2 * (variable - 1.0) for variable in variables], variables)
    return [variable.numpy() for variable in variables]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_follows_the_schedule_and_lowers_the_loss(name):
    schedule = registry.load("schedules", "linear")(0.01, 100)
    optimizer = load("optimizers", name)(schedule)
    before = sum(((random(shape, n) - 1) ** 2).sum() for n, shape in enumerate(SHAPES))
    after = stepped(optimizer, 50)
    assert sum(((value - 1) ** 2).sum() for value in after) < before
    assert int(optimizer.iterations) == 50
    assert float(optimizer.learning_rate) == pytest.approx(float(schedule(50)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_has_no_rules_of_its_own_and_comes_back_from_its_config(name):
    """Clipping, accumulation, loss scaling and moving averages are those of
    `training/optim`.
    """
    one = load("optimizers", name)(registry.load("schedules", "cosine")(0.03, 10))
    assert isinstance(one, keras.optimizers.Optimizer) and not one.built
    assert one.clipnorm is None and one.global_clipnorm is None and not one.use_ema
    assert one.gradient_accumulation_steps is None and one.loss_scale_factor is None
    text = json.dumps(keras.optimizers.serialize(one))
    other = keras.optimizers.deserialize(json.loads(text))
    assert type(other) is type(one)
    for first, second in zip(stepped(one), stepped(other), strict=True):
        np.testing.assert_array_equal(first, second)


def updated(name, xla):
    """All variables after three updates, the second of which is not finite."""
    options = TrainConfig(
        optimizer=name, optimizer_options={}, weight_decay=0.1, ema=0.9
    )
    weights = [keras.Variable(random(s, n), name=f"v{n}") for n, s in enumerate(SHAPES)]
    rate = build_rate(options, 10, paced=False)
    optimizer = build_optimizer(options, rate, weights)
    update = UpdateRule(optimizer, weights, [], options, False, rate, branchless=xla)

    def step(size):
        gradients = [size * (weight.value - 1.0) for weight in weights]
        update.apply(gradients, tf.constant(0.0), weights, update.snapshot())

    compiled = tf.function(step, autograph=False, jit_compile=xla)
    for size in (1.0, np.inf, 2.0):
        compiled(tf.constant(size))
    assert update.skipped_steps == 1
    changed = [*weights, *optimizer.variables, *update.variables]
    return [variable.numpy() for variable in changed]


@pytest.mark.parametrize("name", [*KERAS_OPTIMIZERS, *OPTIMIZERS])
def test_the_update_is_the_same_with_xla(name):
    for one, other in zip(updated(name, False), updated(name, True), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-5)
