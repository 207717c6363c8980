"""Fused batch normalization against Keras's layer, its reference; and models that
contain it.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_problem import TASK, machine, random_split, settings_of, task_of

from pipeline.config.sections import ModelConfig
from pipeline.data import batching
from pipeline.layers import batch_normalization
from pipeline.layers.batch_normalization import FusedBatchNormalization
from pipeline.training.model_builder import build, network

SMALL = ModelConfig(name="residual", options={"widths": (8, 16), "blocks": 1})


def pair(policy="float32", shape=(4, 5, 6), **options):
    """(Keras's layer, the fused one), with the same random weights."""
    layers = [
        kind(momentum=0.7, dtype=policy, **options)
        for kind in (keras.layers.BatchNormalization, FusedBatchNormalization)
    ]
    generator = np.random.default_rng(3)
    for layer in layers:
        layer.build((None, *shape))
    values = [
        generator.uniform(0.5, 2, v.shape).astype("float32") for v in layers[0].weights
    ]
    for layer in layers:
        layer.set_weights(values)
    return layers


def results(layer, images, training):
    """Outputs, gradients of images and weights, and the weights afterwards."""
    direction = np.random.default_rng(5).normal(size=images.shape).astype("float32")
    with tf.GradientTape() as tape:
        tape.watch(images)
        outputs = layer(images, training=training)
        loss = tf.reduce_sum(tf.cast(outputs, tf.float32) * direction)
    assert outputs.dtype == layer.compute_dtype
    gradients = tape.gradient(
        loss, [images, *(v.value for v in layer.trainable_weights)]
    )
    return [
        np.asarray(tf.cast(t, tf.float32))
        for t in (outputs, *gradients, *layer.weights)
    ]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_results_and_gradients_are_those_of_keras(policy, training):
    images = np.random.default_rng(4).normal(2, 3, (7, 4, 5, 6)).astype("float32")
    stock, fused = (
        results(layer, tf.cast(images, layer.compute_dtype), training)
        for layer in pair(policy)
    )
    bound = {"float32": 2e-6, "mixed_bfloat16": 2**-7, "mixed_float16": 2**-10}[policy]
    for one, other in zip(
        stock[:2], fused[:2], strict=True
    ):  # in the precision of the images
        np.testing.assert_allclose(one, other, atol=bound * np.abs(one).max())
    for one, other in zip(stock[2:], fused[2:], strict=True):  # in float32
        bound = 2e-6 if policy == "float32" else 2e-3
        np.testing.assert_allclose(one, other, atol=bound * np.abs(one).max())
    start = pair()[1].get_weights()[2:]
    assert np.array_equal(fused[-2:], start) != training


@pytest.mark.parametrize(
    "case",
    [
        {"scale": False},
        {"center": False, "epsilon": 1e-5},
        {"synchronized": True},
        {"axis": 1},
        {"renorm": True},
        {"shape": (6,)},
        {"trainable": False},
        {"policy": "float64"},
    ],
)
def test_every_other_case_is_also_that_of_keras(case):
    images = np.random.default_rng(4).normal(2, 3, (7, *case.get("shape", (4, 5, 6))))
    layers = pair(**case)
    stock, fused = (
        results(layer, tf.cast(images, layer.dtype), True) for layer in layers
    )
    for one, other in zip(stock, fused, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6 * np.abs(one).max())


def test_one_image_of_one_pixel():
    """Its variance is 0; the operation divides by the number of pixels less one."""
    images = tf.constant(np.full((1, 1, 1, 3), 7.0, np.float32))
    for one, other in zip(
        *(results(x, images, True) for x in pair(shape=(1, 1, 3))), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_an_export_uses_the_inference_form():
    model = network(task_of((8, 8, 1), 3), SMALL, "float32")
    traced = tf.function(lambda x: model(x, training=False))
    graph = traced.get_concrete_function(tf.TensorSpec((None, 8, 8, 1))).graph
    found = [node for node in graph.get_operations() if node.type == "FusedBatchNormV3"]
    assert len(found) == 6 and not any(node.get_attr("is_training") for node in found)


def test_synchronized_statistics_are_left_to_keras():
    settings = settings_of(
        model={"name": "residual", "options": SMALL.options},
        train={"synchronized_batch_norm": True},
    )
    batches = batching.training(random_split(32), settings.train, 0)
    model = build(TASK, settings, machine(), batches)
    traced = tf.function(lambda x: model(x, training=True))
    graph = traced.get_concrete_function(tf.TensorSpec((8, 8, 8, 1))).graph
    assert not any(node.type == "FusedBatchNormV3" for node in graph.get_operations())


@pytest.mark.parametrize("trainable", [True, False])
def test_a_frozen_layer_has_a_deterministic_gradient(monkeypatch, trainable):
    """On a GPU, TensorFlow raises an error for that of the fused operation."""
    monkeypatch.setattr(batch_normalization, "is_op_determinism_enabled", lambda: True)
    _, layer = pair(trainable=trainable)
    traced = tf.function(lambda x: layer(x, training=True))
    graph = traced.get_concrete_function(tf.TensorSpec((7, 4, 5, 6))).graph
    assert trainable == any(
        node.type == "FusedBatchNormV3" for node in graph.get_operations()
    )
