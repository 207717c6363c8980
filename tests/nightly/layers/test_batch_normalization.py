"""Fused batch normalization against Keras's layer, its reference; and models that
contain it.
"""

import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_problem import TASK, machine, random_split, settings_of, task_of

from pipeline.config import registry
from pipeline.config.sections import ModelConfig
from pipeline.data import batching
from pipeline.export import formats
from pipeline.layers.batch_normalization import FusedBatchNormalization
from pipeline.training.model_builder import build, network
from pipeline.utils.errors import UsageError

SMALL = ModelConfig(name="residual", options={"widths": (8, 16), "blocks": 1})


STATE = ("gamma", "beta", "moving_mean", "moving_variance")


def trained(engine, precision="mixed_bfloat16", steps_per_execution=1):
    settings = settings_of(model={"name": "residual", "options": SMALL.options})
    batches = batching.training(random_split(32), settings.train, 0)
    model = build(TASK, settings, machine(precision), batches)
    model.steps_per_execution = steps_per_execution
    registry.load("engines", engine)(model, batches, None, [])
    return model


def test_engines_train_the_same_weights():
    first = trained("model_fit")
    second = trained("gradient_tape", steps_per_execution=3)
    assert [w.path.rpartition("/")[2] for w in first.layers[2].weights] == list(STATE)
    for one, two in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_saved_model_has_the_layers_of_keras_only(tmp_path):
    model = trained("gradient_tape", "float32")
    plain = model.to_keras_model()
    formats.write_keras(tmp_path / "model.keras", plain, {})
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        config = archive.read("config.json").decode()
    assert "pipeline" not in config and "BatchNormalization" in config
    loaded = keras.models.load_model(tmp_path / "model.keras")
    images = np.random.default_rng(1).integers(0, 256, (5, 8, 8, 1)).astype("float32")
    expected = tf.nn.softmax(model(images / 255, training=False))
    np.testing.assert_allclose(loaded(images), expected, atol=1e-6)
    # Back into a network with fused layers.
    again = network(TASK, SMALL, "float32")
    again.set_weights(loaded.get_weights())
    np.testing.assert_array_equal(again(images / 255), model(images / 255))


def test_keras_applications_are_fused_on_request():
    def made(**options):
        options = ModelConfig(
            name="application", options={"name": "MobileNet"}, **options
        )
        return network(task_of((64, 64, 3), 3), options, "float32")

    def kinds(model):
        layers = model._flatten_layers(include_self=False)
        found = [
            type(x) for x in layers if isinstance(x, keras.layers.BatchNormalization)
        ]
        assert found
        return set(found)

    keras.utils.set_random_seed(0)
    stock, fused = made(), made(fused_batch_norm=True)
    assert kinds(stock) == {keras.layers.BatchNormalization}
    assert kinds(fused) == {FusedBatchNormalization}
    fused.set_weights(stock.get_weights())
    assert kinds(keras.Model.from_config(fused.to_keras_model().get_config())) == kinds(
        stock
    )
    images = np.random.default_rng(1).random((8, 64, 64, 3)).astype("float32")
    for training in (False, True):
        expected = stock(images, training=training)
        np.testing.assert_allclose(
            fused(images, training=training), expected, atol=1e-3
        )
    np.testing.assert_allclose(
        stock.get_weights()[3], fused.get_weights()[3], atol=1e-7
    )
    assert fused.layers[-1].get_weights()[0].shape == (1024, 3)
    with pytest.raises(
        UsageError, match=r"batch-norm: linear has no keras.layers.Batch"
    ):
        network(
            task_of((8, 8, 1)),
            ModelConfig(name="linear", fused_batch_norm=True),
            "float32",
        )
