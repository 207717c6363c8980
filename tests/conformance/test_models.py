"""Every model builds for any image, gives a vector or a map per example, and can be
saved.
"""

import json

import keras
import numpy as np
import pytest
from registered_functions import MODELS, options_of

from pipeline.config import registry
from pipeline.config.sections import ModelConfig
from pipeline.training.model_builder import copy_network, network
from pipeline.utils.errors import UsageError


def settings_of(name):
    return ModelConfig(name=name, options=options_of("models", name))


def features_of(name, inputs):
    return registry.call("models", name, options_of("models", name), inputs)


def task_of(name, shape):
    """Classes of images, or of their pixels if the model returns a map."""
    metadata = {"image_shape": list(shape), "class_names": ["a", "b", "c"]}
    metadata |= {"input": "image", "target": "classes"}
    features = features_of(name, keras.Input(shape))
    if isinstance(features, list):
        metadata |= {"target": "boxes", "boxes_per_image": 1}
    elif len(features.shape) == 4:
        metadata |= {"target": "mask", "mask_shape": list(shape[:2])}
    return registry.call("tasks", "supervised", {}, metadata)


long = pytest.mark.long


@pytest.mark.parametrize(
    "shape",
    [
        (5, 9, 4),
        pytest.param((1, 1, 1), marks=long),
        pytest.param((33, 20, 3), marks=long),
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_any_size_and_channel_count(name, shape):
    if name == "application":  # its networks see colours
        shape = (*shape[:2], min(shape[2], 3))
    features = features_of(name, keras.Input(shape))
    is_pyramid = isinstance(features, list)
    if not is_pyramid:
        assert features.shape[0] is None
        assert len(features.shape) == 2 or features.shape[1:3] == shape[:2]
    model = network(task_of(name, shape), settings_of(name), "float32")
    predictions = model(np.zeros((2, *shape), np.float32), training=False)
    if is_pyramid:
        locations = sum(x.shape[1] * x.shape[2] for x in features)
        assert predictions.shape == (2, locations, 7 + 3)
    else:
        assert predictions.shape == (2, *features.shape[1:-1], 3)
    assert np.isfinite(predictions).all()
    plain = keras.Model(model.input, model.output)
    json.dumps(plain.get_config())
    assert len({layer.name for layer in plain.layers}) == len(plain.layers)
    assert model.trainable_weights[-1].path == "logits/bias"


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_any_shape_of_features_and_several_inputs(name):
    """Models that are not for images alone."""
    inputs = {"left": keras.Input((3,)), "right": keras.Input((5, 2))}
    for x in (inputs["left"], inputs["right"], keras.Input((4, 3, 2)), inputs):
        features = features_of(name, x)
        assert len(features.shape) == 2 and features.shape[0] is None


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_each_of_several_inputs_changes_the_features(name):
    shapes = {"left": (3,), "right": (5, 2)}
    inputs = {part: keras.Input(shape, name=part) for part, shape in shapes.items()}
    model = keras.Model(inputs, features_of(name, inputs))
    values = {
        part: np.ones((1, *x.shape[1:]), np.float32) for part, x in inputs.items()
    }
    before = model(values)
    for part, value in values.items():
        after = model({**values, part: -value})
        assert np.abs(after - before).max() > 0, part


@pytest.mark.parametrize("name", MODELS)
def test_several_inputs_are_joined_or_refused_by_name(name):
    parts = {"left": keras.Input((3,)), "right": keras.Input((5, 2))}
    try:
        assert len(features_of(name, parts).shape) == 2
    except UsageError as error:
        assert "the task's inputs are left, right" in str(error)


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("convnet", "unet") else pytest.param(name, marks=long)
        for name in MODELS
    ],
)
def test_mixed_precision_ends_in_float32_and_has_a_float32_twin(name):
    task, options = task_of(name, (8, 8, 1)), settings_of(name)
    keras.utils.set_random_seed(0)
    model = network(task, options, "mixed_bfloat16")
    images = np.random.default_rng(0).random((16, 8, 8, 1), np.float32)
    mixed = model(images, training=False)
    assert mixed.dtype == "float32"
    assert all(variable.dtype == "float32" for variable in model.weights)
    assert keras.config.dtype_policy().name == "float32", "the policy leaked"
    same = copy_network(model, task, options)
    assert {layer.compute_dtype for layer in same.layers} == {"float32"}
    exact = same(images, training=False).numpy()
    difference = np.abs(exact - mixed.numpy()).max()
    assert difference < 0.1 * max(1, np.abs(exact).max()), "the weights were not copied"
    if (
        len(model.weights) > 2
    ):  # with two, its only layer is the head, which is float32 in both
        assert difference > 0, "the mixed model computed in float32"
