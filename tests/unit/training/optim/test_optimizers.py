"""Optimizers against NumPy, written from the papers; Muon against singular values."""

import keras
import numpy as np
import pytest
from registered_functions import MODELS
from toy_problem import random

from pipeline.config import registry
from pipeline.training.optim.optimizers.muon import Muon, _orthogonalize
from pipeline.utils.errors import UsageError

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


def trained(name, options, shapes, names=()):
    """The values of variables of these shapes after five steps with random
    gradients.
    """
    optimizer = registry.load("optimizers", name)(
        registry.load("schedules", "linear")(0.05, 5), **options
    )
    variables = [
        keras.Variable(
            random(shape, number), name=[*names, *map(str, range(9))][number]
        )
        for number, shape in enumerate(shapes)
    ]
    optimizer.build(variables)
    for step in range(len(RATES)):
        gradients = [
            random(shape, 100 * step + 7 + n) for n, shape in enumerate(shapes)
        ]
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)
    return [variable.numpy() for variable in variables]


def by_hand(rule, shape, number=0, **options):
    """The same in float64, where `rule` yields the change of each step."""
    value = random(shape, number).astype(np.float64)
    gradients = (
        random(shape, 100 * s + 7 + number).astype(np.float64)
        for s in range(len(RATES))
    )
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


def adam(beta_1=0.9, beta_2=0.999, epsilon=1e-7, decay=0.0, factor=1.0):
    mean, square, count, change = 0.0, 0.0, 0, None
    while True:
        rate, gradient, value = yield change
        count += 1
        mean = beta_1 * mean + (1 - beta_1) * gradient
        square = beta_2 * square + (1 - beta_2) * gradient**2
        # Keras adds epsilon before the correction of the second moment ("epsilon hat").
        scale = np.sqrt(1 - beta_2**count) / (1 - beta_1**count)
        change = (
            -rate
            * factor
            * (decay * value + scale * mean / (np.sqrt(square) + epsilon))
        )


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
        ("sgd", {"momentum": 0.9}, sgd, {}),
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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nesterov": False},
        pytest.param({"momentum": 0.6}, marks=pytest.mark.long),
        pytest.param({"adam_factor": 0.25}, marks=pytest.mark.long),
    ],
)
def test_muon_uses_singular_values_or_adam_for_each_kind_of_variable(options):
    shapes = [shape for shape, _ in KINDS.values()]
    found = trained("muon", options, shapes, KINDS)
    others = {
        "beta_2": 0.95,
        "epsilon": 1e-8,
        "factor": options.get("adam_factor", 1.0),
    }
    options = {name: value for name, value in options.items() if name != "adam_factor"}
    for number, (shape, orthogonal) in enumerate(KINDS.values()):
        rule, given = (muon, options) if orthogonal else (adam, others)
        wanted = by_hand(rule, shape, number, **given)
        np.testing.assert_allclose(
            found[number], wanted, atol=5e-5, err_msg=list(KINDS)[number]
        )


def test_keras_own_muon_does_not_orthogonalise_convolutions():
    """The reason for this one: Keras's has a second moment, as Adam has, for such a
    kernel.
    """
    optimizer = keras.optimizers.Muon()
    optimizer.build(
        [keras.Variable(np.zeros((3, 3, 4, 6))), keras.Variable(np.zeros((20, 10)))]
    )
    moments = [v for v in optimizer.variables if v.name.endswith("velocity")]
    assert [tuple(v.shape) for v in moments] == [(3, 3, 4, 6)]


@pytest.mark.parametrize("shape", [(36, 6), (6, 36), (16, 16), (2, 2), (576, 64)])
def test_the_update_is_nearly_orthogonal(shape):
    matrix = random(shape, 3) * 1e-3
    found = keras.ops.convert_to_numpy(_orthogonalize(matrix))
    values = np.linalg.svd(found, compute_uv=False)
    assert values.min() > 0.67 and values.max() < 1.21
    np.testing.assert_allclose(found, equalised(matrix.astype(np.float64)), atol=3e-4)


def test_without_a_gradient_only_decay_changes_weights():
    optimizer = Muon(0.1, weight_decay=0.5)
    values = [random(shape, 1) for shape in ((5, 4), (4, 6), (6,), (6, 3))]
    variables = [keras.Variable(value) for value in values]
    optimizer.exclude_from_weight_decay(var_list=[variables[2]])
    optimizer.build(variables)
    optimizer.apply([keras.ops.zeros_like(v) for v in variables], variables)
    for number, (value, variable) in enumerate(zip(values, variables, strict=True)):
        left = 1 if number == 2 else 0.95
        np.testing.assert_allclose(variable.numpy(), value * left, rtol=1e-6)


def test_an_option_that_keras_rejects_is_one_line():
    with pytest.raises(UsageError, match="--train.optimizer SGD: .*momentum"):
        registry.load("optimizers", "sgd")(0.1, momentum=1.5)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_muon_updates_variables_of_every_dtype(dtype):
    variables = [
        keras.Variable(np.ones(shape), dtype=dtype) for shape in ((3, 4), (4, 4), (4,))
    ]
    optimizer = Muon(0.125)
    optimizer.build(variables)
    gradients = [keras.ops.ones_like(variable) for variable in variables]
    optimizer.apply(gradients, variables)
    # The first step of Adam is the sign of the gradient, times `adam_factor`.
    expected = np.full(4, 1 - 0.125 * optimizer.adam_factor)
    found = keras.ops.convert_to_numpy(keras.ops.cast(variables[2], "float32"))
    np.testing.assert_allclose(found, expected, atol=4e-3)


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("convnet", "unet")
        else pytest.param(name, marks=pytest.mark.long)
        for name in MODELS
    ],
)
def test_muon_leaves_input_and_head_of_every_model_to_adam(name):
    inputs = keras.Input((16, 16, 3))
    needed = {"name": "MobileNetV2"} if name == "application" else {}
    features = registry.load("models", name)(inputs, **needed)
    if isinstance(features, list):  # of several maps
        features = features[0]
    logits = keras.layers.Dense(3, name="logits")(features)
    variables = keras.Model(inputs, logits).trainable_variables
    optimizer = Muon()
    optimizer.build(variables)
    matrices = [v for v in variables if len(v.shape) in (2, 4)]
    assert matrices[-1].path == "logits/kernel"
    moments = {v.name for v in optimizer.variables}
    for variable in (matrices[0], matrices[-1]):
        assert variable.path.replace("/", "_") + "_velocity" in moments
