"""Every model builds for any image, gives one vector per example, and can be saved."""

import json

import keras
import numpy as np
import pytest
from siblings import MODELS, options_of

from pipeline.config import registry
from pipeline.config.sections import ModelConfig
from pipeline.training.model_builder import copy_network, network


def settings_of(name):
    return ModelConfig(name=name, options=options_of("models", name))


def task_of(shape, classes=3):
    names = [f"class {number}" for number in range(classes)]
    metadata = {"class_names": names, "image_shape": list(shape)}
    return registry.load("tasks", "image_classification")(metadata)


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 9, 4), (33, 20, 3)])
@pytest.mark.parametrize("name", MODELS)
def test_any_size_and_channel_count(name, shape):
    if name == "application":  # its networks see colours
        shape = (*shape[:2], min(shape[2], 3))
    features = registry.call(
        "models", name, options_of("models", name), keras.Input(shape)
    )
    assert len(features.shape) == 2 and features.shape[0] is None
    model = network(task_of(shape), settings_of(name), "float32")
    answers = model(np.zeros((2, *shape), np.float32), training=False)
    assert answers.shape == (2, 3) and np.isfinite(answers).all()
    plain = keras.Model(model.input, model.output)
    json.dumps(plain.get_config())
    assert len({layer.name for layer in plain.layers}) == len(plain.layers)
    assert model.trainable_weights[-1].path == "logits/bias"


@pytest.mark.parametrize("name", MODELS)
def test_mixed_precision_ends_in_float32_and_has_a_float32_twin(name):
    task, options = task_of((8, 8, 1)), settings_of(name)
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
