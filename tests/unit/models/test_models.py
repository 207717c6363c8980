"""Models: as large as their descriptions say, for any image, in any precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_problem
from registered_functions import MODELS
from toy_problem import task_of

from pipeline.config import config, registry
from pipeline.data import batching
from pipeline.models import simple
from pipeline.training import pretrained
from pipeline.training.model_builder import build, copy_network, network
from pipeline.utils.errors import UsageError

# Options that a model cannot do without.
NEEDED = {"application": {"name": "VGG16"}}


def settings_of(name):
    return config.ModelConfig(name=name, options=NEEDED.get(name, {}))


def dense(inputs, outputs):
    return inputs * outputs + outputs


def conv(kernel, inputs, outputs):
    return kernel * kernel * inputs * outputs + outputs


PARAMETERS = {
    # Two 3x3 convolutions of 64, each with the four vectors of batch normalisation.
    ("convnet", (32, 32, 3)): (
        9 * (3 + 64) * 64 + 2 * 4 * 64 + dense(8 * 8 * 64, 10)
    ),  # no biases
    # keras.io/examples/vision/mnist_convnet prints 34,826.
    ("sequential", (28, 28, 1)): 34_826,
    # d2l.ai, section 7.6: 61,706.
    ("lenet", (28, 28, 1)): 61_706,
    ("tiny", (28, 28, 1)): (
        conv(3, 1, 3)
        + conv(3, 3, 6)
        + dense(5 * 5 * 6, 32)
        + dense(32, 32)
        + dense(32, 10)
    ),
    ("linear", (28, 28, 1)): dense(784, 10),
    # keras.io: VGG16 without its top has 14,714,688.
    ("application", (32, 32, 3)): 14_714_688 + dense(512, 10),
    # 269,722 are trained (see test_large_models); two moving statistics of each channel
    # are not.
    ("resnet", (32, 32, 3)): 269_722 + 2 * (16 + 6 * (16 + 32 + 64)),
    # A convolution and four vectors of normalization each; 1x1 shortcuts into the last
    # two stages.
    ("residual", (32, 32, 3)): (
        9 * (3 * 64 + 4 * 64**2 + 64 * 128 + 3 * 128**2)
        + 9 * (128 * 256 + 3 * 256**2)
        + (64 * 128 + 128 * 256)
        + 4 * (5 * 64 + 5 * 128 + 5 * 256)
        + dense(256, 10)
    ),
    # arXiv 2404.00498: 1.97 million. Normalisations have three vectors, there is no
    # gamma.
    ("airbench", (32, 32, 3)): (
        conv(2, 3, 24)
        + 9 * (24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256)
        + 3 * (2 * 64 + 4 * 256)
        + dense(256, 10)
    ),
}


@pytest.mark.parametrize(("name", "shape"), PARAMETERS)
def test_number_of_parameters(name, shape):
    model = network(task_of(shape), settings_of(name), "float32")
    assert model.count_params() == PARAMETERS[name, shape]


@pytest.mark.parametrize("name", MODELS)
def test_a_vector_is_fitted_or_refused_by_its_shape(name):
    metadata = {
        "feature_names": ["a", "b"],
        "mean": [0.0, 0.0],
        "deviation": [1.0, 1.0],
    }
    task = registry.load("tasks", "regression")(metadata)
    try:
        model = network(task, settings_of(name), "float32")
    except UsageError as error:
        assert "this model needs images" in str(error) and "mlp" in str(error)
        assert name != "mlp" and "\n" not in str(error)
    else:
        assert model.output_shape == (None, 1)


def functional(x, last, name="net"):
    inputs = keras.Input(x.shape[1:])
    flat = keras.layers.Flatten()(inputs)
    return keras.Model(inputs, last(keras.layers.Dense(10)(flat)), name=name)(x)


def answered(x, count, activation):
    last = keras.layers.Dense(count, activation=activation, name="last")
    return last(keras.layers.Flatten()(x))


def through(function):
    return lambda x: function(answered(x, 10, None))


CLASSIFIERS = {
    "softmax of layer 'last'": lambda x: answered(x, 10, "softmax"),
    "log_softmax of layer 'last'": lambda x: answered(x, 10, "log_softmax"),
    "sigmoid of layer 'last'": lambda x: answered(x, 1, "sigmoid"),
    "sigmoid of layer 'sigmoid": lambda x: keras.activations.sigmoid(
        answered(x, 1, None)
    ),
    "softmax of layer 'softmax": through(keras.activations.softmax),
    "log_softmax of layer 'log_softmax": lambda x: functional(
        x, keras.activations.log_softmax
    ),
    "softmax of layer 'layer'": through(keras.layers.Softmax(name="layer")),
    "softmax of layer 'activation": through(keras.layers.Activation("softmax")),
    "softmax of layer 'prediction'": lambda x: functional(
        x, keras.layers.Softmax(name="prediction")
    ),
    "softmax of layer 'predictions'": lambda x: keras.applications.MobileNet(
        input_shape=(32, 32, 3), weights=None, classes=10
    )(x),
}


@pytest.mark.parametrize("message", CLASSIFIERS)
def test_a_classifier_is_no_features(message):
    """Of a user's function; those of the package return features."""
    settings = settings_of(CLASSIFIERS[message])
    with pytest.raises(
        UsageError, match=f"--model.name .*: its features end in the {message}"
    ):
        network(task_of((32, 32, 3)), settings, "mixed_float16")


def test_features_of_images_are_vectors(monkeypatch):
    monkeypatch.setattr(simple, "tiny", lambda x: None)
    with pytest.raises(UsageError, match="tiny .*tensor"):
        network(task_of((8, 8, 3)), settings_of("tiny"), "float32")
    monkeypatch.setattr(simple, "tiny", keras.layers.Conv2D(5, 3))
    message = (
        r"--model.name: .* vector per example, \(batch, n\); got \(batch, 6, 6,"
        r" 5\); add"
    )
    with pytest.raises(
        UsageError, match=f"{message} GlobalAveragePooling2D or Flatten"
    ):
        network(task_of((8, 8, 3)), settings_of("tiny"), "float32")


def test_an_adapted_normalization_is_copied_and_loaded(tmp_path, monkeypatch):
    """Keras's `set_weights` alone does not change what the layer computes."""
    body = keras.layers.Flatten()
    monkeypatch.setattr(simple, "tiny", lambda x: body(keras.layers.Normalization()(x)))
    settings, split = toy_problem.settings_of(), toy_problem.random_split()
    batches = batching.training(split, settings.train, 0)
    model = build(
        toy_problem.TASK, settings, toy_problem.machine("mixed_bfloat16"), batches
    )
    images = split.take(np.arange(32))["image"] / np.float32(255)
    same = copy_network(model, toy_problem.TASK, settings.model)
    np.testing.assert_allclose(same(images), model(images), atol=0.1)
    same.to_keras_model().save(tmp_path / "model.keras")
    same.to_keras_model().save_weights(tmp_path / "model.weights.h5")
    for file in tmp_path.iterdir():
        loaded = network(toy_problem.TASK, settings.model, "float32")
        pretrained.load(loaded, file)
        np.testing.assert_array_equal(loaded(images), same(images))


FEATURES = {
    "sigmoids": lambda x: answered(x, 84, "sigmoid"),
    "nested": lambda x: functional(x, keras.layers.ReLU()),
    "dropped": lambda x: keras.layers.Dropout(0.1)(keras.layers.Flatten()(x)),
    "regularised": lambda x: keras.layers.ActivityRegularization(0.1)(
        answered(x, 4, "relu")
    ),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_are_let_through(monkeypatch, name):
    monkeypatch.setattr(simple, "tiny", FEATURES[name])
    model = network(task_of((8, 8, 3)), settings_of("tiny"), "float32")
    model(np.zeros((2, 8, 8, 3), np.float32))
    assert not any(tf.is_symbolic_tensor(loss) for loss in model.losses)
