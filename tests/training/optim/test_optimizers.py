"""Optimizers against NumPy, written from the papers."""

import keras
import numpy as np
import pytest

from pipeline.config import registry

RATES = [0.05, 0.04, 0.03, 0.02, 0.01]


def random(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def trained(name, options, shapes):
    """The values of variables of these shapes after five steps with random gradients."""
    optimizer = registry.load("optimizers", name)(
        registry.load("schedules", "linear")(0.05, 5), **options
    )
    variables = [
        keras.Variable(random(shape, number), name=str(number))
        for number, shape in enumerate(shapes)
    ]
    optimizer.build(variables)
    for step in range(len(RATES)):
        gradients = [random(shape, 100 * step + 7 + n) for n, shape in enumerate(shapes)]
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)
    return [variable.numpy() for variable in variables]


def by_hand(rule, shape, number=0, **options):
    """The same in float64, where `rule` yields the change of each step."""
    value = random(shape, number).astype(np.float64)
    gradients = (random(shape, 100 * s + 7 + number).astype(np.float64) for s in range(len(RATES)))
    change = rule(**options)
    next(change)
    for rate, gradient in zip(RATES, gradients, strict=True):
        value = value + change.send((rate, gradient, value))
    return value


def sgd(momentum=0.0, nesterov=False):
    velocity, change = 0.0, None
    while True:
        rate, gradient, _ = yield change
        velocity = momentum * velocity - rate * gradient
        change = momentum * velocity - rate * gradient if nesterov else velocity


def adam(beta_1=0.9, beta_2=0.999, epsilon=1e-7, decay=0.0):
    mean, square, count, change = 0.0, 0.0, 0, None
    while True:
        rate, gradient, value = yield change
        count += 1
        mean = beta_1 * mean + (1 - beta_1) * gradient
        square = beta_2 * square + (1 - beta_2) * gradient**2
        # Keras adds epsilon before the correction of the second moment ("epsilon hat").
        scale = np.sqrt(1 - beta_2**count) / (1 - beta_1**count)
        change = -rate * (decay * value + scale * mean / (np.sqrt(square) + epsilon))


def lion(beta_1=0.9, beta_2=0.99):
    mean, change = 0.0, None
    while True:
        rate, gradient, _ = yield change
        change = -rate * np.sign(beta_1 * mean + (1 - beta_1) * gradient)
        mean = beta_2 * mean + (1 - beta_2) * gradient


@pytest.mark.parametrize(
    ("name", "options", "rule", "more"),
    [
        ("sgd", {}, sgd, {}),
        ("sgd", {"momentum": 1}, sgd, {}),
        ("sgd", {"momentum": 0.9, "nesterov": True}, sgd, {}),
        ("adam", {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 0.1}, adam, {}),
        ("adamw", {}, adam, {"decay": 0.004}),
        ("lion", {"beta_1": 0.5, "beta_2": 0.6}, lion, {}),
    ],
)
def test_five_steps_are_those_of_the_paper(name, options, rule, more):
    for number, value in enumerate(trained(name, options, [(4, 3), (3,)])):
        wanted = by_hand(rule, value.shape, number, **options, **more)
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)
