"""Update rules against NumPy, written from the papers; Muon against singular values."""

import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest

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


def random(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def trained(optimizer, shapes, names=None):
    """The values of variables of these shapes after five steps with random gradients."""
    names = names or [f"variable_{number}" for number in range(len(shapes))]
    variables = [
        keras.Variable(random(shape, number), name=name)
        for number, (shape, name) in enumerate(zip(shapes, names, strict=True))
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


def nadam(beta_1=0.9, beta_2=0.999, epsilon=1e-7):
    mean, square, count, product, change = 0.0, 0.0, 0, 1.0, None
    while True:
        rate, gradient, _ = yield change
        count += 1
        now, following = (beta_1 * (1 - 0.5 * 0.96**t) for t in (count, count + 1))
        product *= now
        mean = beta_1 * mean + (1 - beta_1) * gradient
        square = beta_2 * square + (1 - beta_2) * gradient**2
        ahead = following * mean / (1 - product * following)
        ahead = ahead + (1 - now) * gradient / (1 - product)
        change = -rate * ahead / (np.sqrt(square / (1 - beta_2**count)) + epsilon)


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
        ("sgd", {"momentum": 1}, sgd, {}),
        ("sgd", {"momentum": 0.9, "nesterov": True}, sgd, {}),
        ("adam", {}, adam, {}),
        ("adam", {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 0.1}, adam, {}),
        ("adamw", {}, adam, {"decay": 0.004}),
        ("nadam", {}, nadam, {}),
        ("nadam", {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 0.1}, nadam, {}),
        ("lion", {}, lion, {}),
        ("lion", {"beta_1": 0.5, "beta_2": 0.6}, lion, {}),
    ],
)
def test_five_steps_equal_the_paper(name, options, rule, more):
    falling = registry.load("schedules", "linear")(0.05, 5)
    found = trained(registry.load("optimizers", name)(falling, **options), [(4, 3), (3,)])
    for number, value in enumerate(found):
        wanted = by_hand(rule, value.shape, number, **options, **more)
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.6}, {"nesterov": False}])
def test_muon_equals_singular_values_or_adam_for_each_kind_of_variable(options):
    falling = registry.load("schedules", "linear")(0.05, 5)
    shapes = [shape for shape, _ in KINDS.values()]
    found = trained(registry.load("optimizers", "muon")(falling, **options), shapes, list(KINDS))
    others = {"beta_2": 0.95, "epsilon": 1e-8}
    for number, (shape, orthogonal) in enumerate(KINDS.values()):
        rule, given = (muon, options) if orthogonal else (adam, others)
        wanted = by_hand(rule, shape, number, **given)
        np.testing.assert_allclose(found[number], wanted, atol=5e-5, err_msg=list(KINDS)[number])


def test_keras_own_muon_does_not_orthogonalise_convolutions():
    """The reason for ours: it keeps a second moment, that is Adam, for a kernel of four axes."""
    optimizer = keras.optimizers.Muon()
    optimizer.build([keras.Variable(np.zeros((3, 3, 4, 6))), keras.Variable(np.zeros((20, 10)))])
    moments = [v for v in optimizer.variables if v.name.endswith("velocity")]
    assert [tuple(v.shape) for v in moments] == [(3, 3, 4, 6)]


def test_a_convolution_is_updated_like_its_flattened_matrix():
    ends = (5, 4)
    kernel, matrix = (
        trained(Muon(0.01), [ends, shape, ends])[1] for shape in ((3, 3, 4, 6), (36, 6))
    )
    np.testing.assert_array_equal(kernel.reshape(36, 6), matrix)


@pytest.mark.parametrize("shape", [(36, 6), (6, 36), (16, 16), (2, 2), (576, 64)])
def test_the_update_is_nearly_orthogonal(shape):
    matrix = random(shape, 3) * 1e-3
    found = keras.ops.convert_to_numpy(_orthogonalize(matrix))
    values = np.linalg.svd(found, compute_uv=False)
    assert values.min() > 0.67 and values.max() < 1.21
    np.testing.assert_allclose(found, equalised(matrix.astype(np.float64)), atol=3e-4)


def test_without_a_gradient_nothing_moves_but_what_decays():
    optimizer = Muon(0.1, weight_decay=0.5)
    values = [random(shape, 1) for shape in ((5, 4), (4, 6), (6,), (6, 3))]
    variables = [keras.Variable(value) for value in values]
    optimizer.exclude_from_weight_decay(var_list=[variables[2]])
    optimizer.build(variables)
    optimizer.apply([keras.ops.zeros_like(v) for v in variables], variables)
    for number, (value, variable) in enumerate(zip(values, variables, strict=True)):
        left = 1 if number == 2 else 0.95
        np.testing.assert_allclose(variable.numpy(), value * left, rtol=1e-6)


def test_muon_comes_back_from_its_config():
    schedule = registry.load("schedules", "cosine")(0.03, 5)
    shapes = [shape for shape, _ in KINDS.values()]
    one = Muon(schedule, momentum=0.7, nesterov=False, global_clipnorm=1.0)
    other = keras.optimizers.deserialize(keras.optimizers.serialize(one))
    assert type(other) is Muon and other.get_config() == one.get_config()
    for first, second in zip(trained(one, shapes), trained(other, shapes), strict=True):
        np.testing.assert_array_equal(first, second)


def test_muon_overfits_one_batch():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Conv2D(8, 3, activation="relu") for _ in range(2)]
    head = [keras.layers.Flatten(), keras.layers.Dense(3, name="logits")]
    model = keras.Sequential([keras.Input((6, 6, 1)), *layers, *head])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(Muon(0.01), loss, metrics=["accuracy"])
    images, labels = random((12, 6, 6, 1), 0), np.arange(12) % 3
    for _ in range(60):
        logs = model.train_on_batch(images, labels, return_dict=True)
        model.reset_metrics()
    assert logs["accuracy"] == 1 and logs["loss"] < 0.01


def test_nesterov_needs_a_momentum():
    with pytest.raises(UsageError, match="nesterov=True of sgd needs a momentum"):
        registry.load("optimizers", "sgd")(0.1, nesterov=True)


@pytest.mark.parametrize("name", registry.names("models"))
def test_muon_leaves_input_and_head_of_every_model_to_adam(name):
    inputs = keras.Input((16, 16, 3))
    needed = {"name": "MobileNetV2"} if name == "application" else {}
    features = registry.load("models", name)(inputs, **needed)
    variables = keras.Model(
        inputs, keras.layers.Dense(3, name="logits")(features)
    ).trainable_variables
    optimizer = Muon()
    optimizer.build(variables)
    matrices = [v for v in variables if len(v.shape) in (2, 4)]
    assert matrices[-1].path == "logits/kernel"
    moments = {v.name for v in optimizer.variables}
    for variable in (matrices[0], matrices[-1]):
        assert variable.path.replace("/", "_") + "_velocity" in moments


def test_two_replicas_do_what_one_does():
    """In a process of its own: the number of devices is fixed when TensorFlow starts.

    Muon, which is ours, and Nadam, the only one of Keras's with a state beside its variables.
    """
    program = """
        import numpy as np
        import keras
        import tensorflow as tf
        from pipeline.config import registry

        (cpu,) = tf.config.list_physical_devices("CPU")
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        draw = np.random.default_rng(0).normal
        start = [draw(size=s).astype(np.float32) for s in ((5, 4), (3, 3, 4, 6), (6,), (6, 3))]
        change = [draw(size=value.shape).astype(np.float32) for value in start]

        def trained(name, strategy):
            with strategy.scope():
                variables = [keras.Variable(value) for value in start]
                optimizer = registry.load("optimizers", name)(0.01)
                optimizer.build(variables)

            def apply():
                # The optimizer adds the gradients of all replicas: 1 + 2 of two, 3 of the only one.
                place = tf.distribute.get_replica_context().replica_id_in_sync_group
                times = 3 if strategy.num_replicas_in_sync == 1 else place + 1
                optimizer.apply([g * tf.cast(times, tf.float32) for g in change], variables)

            step = tf.function(lambda: strategy.run(apply), autograph=False)
            step(), step()
            return [variable.numpy() for variable in variables]

        for name in ("muon", "nadam"):
            pair = trained(name, tf.distribute.get_strategy()), trained(name, mirrored)
            for one, two in zip(*pair):
                np.testing.assert_allclose(one, two, atol=2e-6, err_msg=name)
        print("the same")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    repository = Path(__file__).parents[3]
    result = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "the same", result.stderr[-3000:]
