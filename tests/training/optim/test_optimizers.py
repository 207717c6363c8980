"""Optimizers against NumPy, written from the papers; Muon against singular values."""

import keras
import numpy as np
import pytest

from pipeline.config import registry

RATES = [0.05, 0.04, 0.03, 0.02, 0.01]
KINDS = {  # in the order of a network: whether Muon orthogonalises it
    "stem": ((3, 3, 2, 4), False),
    "convolution": ((3, 3, 4, 6), True),
    "bias": ((6,), False),
    "depthwise": ((3, 3, 6, 1), False),
    "hidden": ((20, 10), True),
    "attention": ((10, 2, 5), False),
    "embedding": ((9, 10), False),
    "logits": ((10, 3), False),
}


def random(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def trained(name, options, shapes, names=()):
    """The values of variables of these shapes after five steps with random gradients."""
    optimizer = registry.load("optimizers", name)(
        registry.load("schedules", "linear")(0.05, 5), **options
    )
    variables = [
        keras.Variable(random(shape, number), name=[*names, *map(str, range(9))][number])
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


def equalised(matrix):
    """Newton-Schulz by its singular values: five times a x + b x^3 + c x^5 on each."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.linalg.norm(values)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left * values @ right


def muon(momentum=0.95, nesterov=True):
    buffer, change = 0.0, None
    while True:
        rate, gradient, _ = yield change
        buffer = momentum * buffer + gradient  # its scale is lost in the normalisation
        direction = gradient + momentum * buffer if nesterov else buffer
        matrix = direction.reshape(-1, direction.shape[-1])
        update = 0.2 * np.sqrt(max(matrix.shape)) * equalised(matrix)
        change = -rate * update.reshape(direction.shape)


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


@pytest.mark.parametrize("options", [{}, {"momentum": 0.6}, {"nesterov": False}])
def test_muon_uses_singular_values_or_adam_for_each_kind_of_variable(options):
    shapes = [shape for shape, _ in KINDS.values()]
    found = trained("muon", options, shapes, KINDS)
    others = {"beta_2": 0.95, "epsilon": 1e-8}
    for number, (shape, orthogonal) in enumerate(KINDS.values()):
        rule, given = (muon, options) if orthogonal else (adam, others)
        wanted = by_hand(rule, shape, number, **given)
        np.testing.assert_allclose(found[number], wanted, atol=5e-5, err_msg=list(KINDS)[number])
