"""Grad-CAM: its maximum lies on what decides the prediction."""

import keras
import numpy as np
import pytest
from toy_problem import task_of

from pipeline.config import registry
from pipeline.evaluation.grad_cam import heat_maps

SIDE = 32


def network(body):
    """Predictions 1 where there is a bright square, from weights that are written down."""
    inputs = keras.Input((SIDE, SIDE, 1))
    x = keras.layers.GlobalAveragePooling2D()(body(inputs))
    logits = keras.layers.Dense(2)
    outputs = logits(x)
    logits.set_weights([np.array([[-1.0, 1.0]]), np.array([0.02, -0.02])])
    return keras.Model(inputs, outputs)


def mean_of_squares(inputs):
    """A map of 16 x 16 means."""
    convolution = keras.layers.Conv2D(1, 4, 2, padding="same", use_bias=False)
    x = convolution(inputs)
    convolution.set_weights([np.full((4, 4, 1, 1), 1 / 16)])
    return keras.layers.ReLU()(x)


def nested(inputs):
    own_input = keras.Input((SIDE, SIDE, 1))
    body = keras.Model(own_input, mean_of_squares(own_input), name="backbone")
    return body(inputs)


def nested_sequential(inputs):
    body = keras.Sequential([keras.Input((SIDE, SIDE, 1)), keras.layers.Conv2D(1, 1)])
    body.layers[0].set_weights([np.ones((1, 1, 1, 1)), np.zeros(1)])
    return mean_of_squares(body(inputs))


@pytest.mark.parametrize("body", [mean_of_squares, nested, nested_sequential])
def test_the_maximum_lies_on_a_planted_square(body):
    corners = [(3, 20), (22, 5), (12, 12)]
    images = np.full((3, SIDE, SIDE, 1), 2, np.uint8)
    for image, (top, left) in zip(images, corners, strict=True):
        image[top : top + 8, left : left + 8] = 255
    examples = {"id": np.arange(3), "image": images, "label": np.ones(3, np.int64)}
    heat = heat_maps(network(body), task_of((SIDE, SIDE, 1), 2), examples)
    assert heat.shape == (3, 16, 16) and heat.min() >= 0
    np.testing.assert_allclose(heat.max(axis=(1, 2)), 1, rtol=1e-6)
    for part, (top, left) in zip(heat, corners, strict=True):
        row, column = np.unravel_index(part.argmax(), part.shape)
        assert top <= 2 * row + 1 < top + 8 and left <= 2 * column + 1 < left + 8
        assert part[0, 0] < 0.1


def test_what_speaks_against_the_answer_is_not_shown():
    """A dark picture is class 0 because of its bias, although its pixels speak for 1."""
    images = np.full((1, SIDE, SIDE, 1), 2, np.uint8)
    examples = {"id": np.arange(1), "image": images, "label": np.zeros(1, np.int64)}
    heat = heat_maps(network(mean_of_squares), task_of((SIDE, SIDE, 1), 2), examples)
    assert not heat.any()


def test_networks_without_convolutions_and_tasks_without_an_output_have_none():
    examples = {
        "id": np.arange(1),
        "image": np.zeros((1, SIDE, SIDE, 1), np.uint8),
        "label": np.zeros(1, np.int64),
    }
    inputs = keras.Input((SIDE, SIDE, 1))
    features = keras.layers.Flatten()(keras.layers.Rescaling(2.0)(inputs))
    dense = keras.Model(inputs, keras.layers.Dense(2)(features))
    task = task_of((SIDE, SIDE, 1), 2)
    assert heat_maps(dense, task, examples) is None
    assert heat_maps(None, task, examples) is None
    masks = registry.load("tasks", "supervised")(
        {
            "input": "image",
            "image_shape": [SIDE, SIDE, 1],
            "target": "mask",
            "class_names": ["a", "b"],
            "mask_shape": [SIDE, SIDE],
        }
    )
    examples["mask"] = np.zeros((1, SIDE, SIDE), np.uint8)
    outputs = keras.layers.Conv2D(2, 3, padding="same")(inputs)
    assert heat_maps(keras.Model(inputs, outputs), masks, examples) is None
