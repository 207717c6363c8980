"""What a user's network ends in, recognized by what its last operations compute."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.config import registry
from pipeline.training.own_keras import head, network
from pipeline.utils.errors import UsageError

layers = keras.layers
SHAPE = (4, 4, 1)


def task(classes):
    names = [f"class {number}" for number in range(classes)]
    metadata = {"class_names": names, "image_shape": list(SHAPE), "raw": True}
    return registry.load("tasks", "image_classification")(metadata)


def body():
    keras.utils.set_random_seed(0)
    inputs = keras.Input(SHAPE)
    features = layers.Flatten()(layers.Rescaling(1 / 255)(inputs))
    return inputs, layers.Dense(8, activation="relu")(features)


def functional(*ends):
    inputs, outputs = body()
    for end in ends:
        outputs = end(outputs)
    return keras.Model(inputs, outputs)


def dense(units=3, activation=None):
    return layers.Dense(units, activation=activation)


def average(activation, units):
    inputs, features = body()
    members = [dense(units, activation)(features) for _ in range(2)]
    return keras.Model(inputs, layers.Average()(members))


def twice(layer):
    inputs, features = body()
    return keras.Model(inputs, layer(features) * 0.5 + layer(features * 2) * 0.5)


class Subclassed(keras.Model):
    def __init__(self, units, end):
        super().__init__()
        self.flatten = layers.Flatten()
        self.dense = layers.Dense(units)
        self.end = end

    def call(self, inputs):
        return self.end(self.dense(self.flatten(inputs) / 255))


class AlwaysDropout(layers.Dropout):
    """Monte Carlo dropout: random in predictions, too."""

    def call(self, inputs, training=None):
        return super().call(inputs, training=True)


class Scaled(layers.Layer):
    """Changes nothing until it is trained."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, inputs):
        return inputs * self.scale


class Tempered(layers.Layer):
    """A layer of a user that computes a softmax under no name of Keras."""

    def call(self, inputs):
        return keras.ops.exp(
            inputs - keras.ops.logsumexp(inputs, axis=-1, keepdims=True)
        )


SOFTMAX = {
    "function of another package": lambda: functional(dense(activation=tf.nn.softmax)),
    "function of its own": lambda: functional(
        dense(activation=lambda x: keras.ops.softmax(x))
    ),
    "operation": lambda: functional(dense(), keras.ops.softmax),
    "function": lambda: functional(dense(), keras.activations.softmax),
    "layer": lambda: functional(dense(), layers.Softmax()),
    "layer Activation": lambda: functional(dense(), layers.Activation("softmax")),
    "Lambda": lambda: functional(dense(), layers.Lambda(tf.nn.softmax)),
    "layer of its own": lambda: functional(dense(), Tempered()),
    "temperature": lambda: functional(dense(), lambda x: keras.ops.softmax(x / 2)),
    "then dropout": lambda: functional(
        dense(activation="softmax"), layers.Dropout(0.5)
    ),
    "then a reshape": lambda: functional(
        dense(activation="softmax"), layers.Reshape((3,))
    ),
    "convolution": lambda: functional(
        layers.Reshape((1, 1, 8)),
        layers.Conv2D(3, 1),
        layers.Softmax(),
        layers.Flatten(),
    ),
    "temperature in the activation": lambda: functional(
        dense(activation=lambda x: keras.ops.softmax(x / 3))
    ),
    "then weights": lambda: functional(dense(activation="softmax"), Scaled()),
    "then a clip": lambda: functional(
        dense(activation="softmax"),
        layers.Lambda(lambda p: keras.ops.clip(p, 1e-7, 1.0)),
    ),
    "nested": lambda: keras.Sequential(
        [keras.Input(SHAPE), functional(dense(activation="softmax"))]
    ),
    "nested twice": lambda: functional(
        keras.Sequential([dense(), keras.Sequential([layers.Softmax()])])
    ),
    "average": lambda: average("softmax", 3),
    "used twice": lambda: twice(dense(activation="softmax")),
    "smoothed": lambda: functional(
        dense(activation="softmax"), lambda x: 0.9 * x + 0.1 / 3
    ),
    "subclassed": lambda: Subclassed(3, tf.nn.softmax),
    "dictionary": lambda: functional(
        dense(activation="softmax"), lambda x: {"answer": x}
    ),
}
SIGMOID = {
    "layer": lambda: functional(dense(1, "sigmoid")),
    "function of another package": lambda: functional(dense(1, tf.sigmoid)),
    "operation": lambda: functional(dense(1), keras.ops.sigmoid),
    "average": lambda: average("sigmoid", 1),
    "hard": lambda: functional(dense(1, "hard_sigmoid")),
    "subclassed": lambda: Subclassed(1, keras.ops.sigmoid),
}
LOGITS = {
    "dense": lambda: functional(dense()),
    "scaled": lambda: functional(dense(), lambda x: 0.5 * x),
    "logarithms": lambda: functional(dense(activation="log_softmax")),
    "average": lambda: average(None, 3),
    "pooled": lambda: keras.Sequential(
        [keras.Input(SHAPE), layers.Conv2D(3, 3), layers.GlobalAveragePooling2D()]
    ),
    "subclassed": lambda: Subclassed(3, lambda x: x),
}
FEATURES = {
    "relu": lambda: functional(),
    "relu as wide as the classes": lambda: functional(dense(activation="relu")),
    "flattened": lambda: keras.Sequential(
        [keras.Input(SHAPE), layers.Conv2D(2, 3), layers.Flatten()]
    ),
    "subclassed": lambda: Subclassed(5, lambda x: x),
}
CASES = [
    *((3, "softmax", f"softmax: {name}", make) for name, make in SOFTMAX.items()),
    *((2, "sigmoid", f"sigmoid: {name}", make) for name, make in SIGMOID.items()),
    *((3, "linear", f"logits: {name}", make) for name, make in LOGITS.items()),
    (2, "logit", "logit: dense", lambda: functional(dense(1))),
    (2, "logit", "logit: subclassed", lambda: Subclassed(1, lambda x: x)),
    *((3, "none", f"features: {name}", make) for name, make in FEATURES.items()),
]


@pytest.mark.parametrize(
    ("classes", "kind", "make"),
    [pytest.param(classes, kind, make, id=name) for classes, kind, name, make in CASES],
)
def test_answers_are_those_of_the_users_network(classes, kind, make):
    """The logits, with the task's own activation, give what the network gave."""
    own = make()
    values = np.random.default_rng(1).uniform(0, 255, (6, *SHAPE)).astype(np.float32)
    expected = np.asarray(keras.tree.flatten(own(values, training=False))[0])
    problem = task(classes)
    inputs = problem.inputs()
    outputs, output_kind, _ = network.outputs(
        network.rebuild(own, SHAPE), inputs, problem
    )
    assert output_kind == kind
    trained = keras.Model(inputs, outputs)
    assert trained.output_shape == (None, classes) and outputs.dtype == "float32"
    if kind != "none":
        network.require_equal_answers(own, trained, output_kind, problem)
        answers = problem.standalone(trained, output_kind)(values)
        np.testing.assert_allclose(answers, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("classes", "make", "message"),
    [
        (3, lambda: functional(dense(4, "softmax")), r"4 values \(softmax\)"),
        (3, lambda: functional(dense(1)), r"1 values \(linear\)"),
        (3, lambda: Subclassed(4, tf.nn.softmax), r"4 values \(softmax\)"),
    ],
)
def test_a_head_of_another_width_is_refused(classes, make, message):
    problem = task(classes)
    with pytest.raises(
        UsageError, match=f"the model returns {message} .* {classes} classes .class 0, "
    ):
        network.outputs(network.rebuild(make(), SHAPE), problem.inputs(), problem)


def test_several_sigmoids_are_no_single_label():
    problem = task(3)
    own = network.rebuild(functional(dense(3, "sigmoid")), SHAPE)
    with pytest.raises(UsageError, match="sigmoid of 3 values"):
        network.outputs(own, problem.inputs(), problem)


def test_what_a_network_was_compiled_with_is_not_rebuilt():
    """Keras would look for the user's functions by their names."""

    def own_loss(y_true, y_pred):
        return keras.ops.square(y_true - y_pred)

    own = functional(dense())
    own.compile("sgd", own_loss, metrics=[own_loss])
    copy = network.rebuild(own, SHAPE)
    assert own.compiled and not copy.compiled


class Forgetful(layers.Layer):
    """Its config leaves out an argument, so that a copy computes something else."""

    def __init__(self, factor=1.0, **options):
        super().__init__(**options)
        self.factor = factor

    def call(self, inputs):
        return inputs * self.factor

    def get_config(self):
        config = super().get_config()
        config.pop("factor", None)
        return config


def test_a_copy_that_answers_differently_is_refused():
    problem = task(3)
    for factor, same in ((1.0, True), (3.0, False)):
        own = functional(Forgetful(factor), dense(activation="softmax"))
        inputs = problem.inputs()
        outputs, output_kind, _ = network.outputs(
            network.rebuild(own, SHAPE), inputs, problem
        )
        trained = keras.Model(inputs, outputs)
        if same:
            network.require_equal_answers(own, trained, output_kind, problem)
            continue
        with pytest.raises(UsageError, match="get_config"):
            network.require_equal_answers(own, trained, output_kind, problem)


def test_a_softmax_after_a_random_layer_is_removed():
    own = functional(AlwaysDropout(0.5), dense(activation="softmax"))
    problem = task(3)
    outputs = network.outputs(network.rebuild(own, SHAPE), problem.inputs(), problem)
    assert outputs[1:] == ("softmax", network.NOTES["softmax"])


def test_random_answers_are_not_compared():
    inputs, features = body()
    noise = layers.Lambda(lambda x: x + tf.random.normal(tf.shape(x)))
    noisy = keras.Model(inputs, dense()(noise(features)))
    network.require_equal_answers(noisy, functional(dense()), "linear", task(3))


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([[0.2, 0.8], [1.0, 0.0]], "softmax"),
        ([[0.2, 0.7], [1.0, 0.0]], "linear"),
        ([[1.2, -0.2], [0.5, 0.5]], "linear"),
        ([[0.2], [0.9]], "sigmoid"),
        ([[0.2], [1.9]], "linear"),
        (np.log([[0.2, 0.8], [0.5, 0.5]]), "log_softmax"),
        ([[np.nan, 1.0], [np.inf, 0.0]], "linear"),
    ],
)
def test_numbers_tell_what_answers_are(answers, kind):
    assert head.kind_of_answers(np.array(answers, np.float32)) == kind
