"""What every signature refuses before a kernel sees it, and what it answers."""

import functools
import io
import re

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.config import registry
from pipeline.export import savedmodel
from pipeline.serving import request_guards

CLASSES = ["cat", "dog", "cow", "hen", "fox", "owl"]
SHAPE = [6, 4, 3]
IMAGES = np.random.default_rng(0).integers(0, 256, (3, *SHAPE), np.uint8)
PIXELS = np.random.default_rng(1).integers(0, 256, (4, 16, 12, 3), np.uint8)
PICTURES = [tf.io.encode_png(image).numpy() for image in IMAGES]


def sums(inputs, training):
    """A network of a kind: six logits out of the sums of the pixels."""
    return tf.reduce_sum(inputs, [1, 2])[:, :1] * tf.range(6.0)


def classifier(**metadata):
    task = registry.load("tasks", "image_classification")
    return task({"class_names": CLASSES, "image_shape": SHAPE, **metadata})


def signatures(task, network=sums):
    """Name -> function of one argument, compiled as in an export."""
    functions = {}
    for serving_input in task.input.signatures():
        function = savedmodel.serving_function(task, network, serving_input)
        specs = list(serving_input.specs.values())
        traced = tf.function(function, specs, autograph=False)
        functions[serving_input.name] = traced
    return functions


@pytest.fixture(scope="module")
def images():
    return signatures(classifier())


@pytest.fixture(scope="module")
def numbers():
    metadata = {
        "feature_names": ["a", "b"],
        "mean": [1.0, 0.0],
        "deviation": [0.5, 2.0],
    }
    task = registry.load("tasks", "regression")(metadata)
    return signatures(
        task, lambda inputs, training: tf.reduce_sum(inputs, 1, keepdims=True)
    )


@functools.cache
def in_any_shape(signature, dtype):
    """The signature for requests of any shape, as a server hands them over."""
    ask = tf.function(signature.python_function, autograph=False)
    return ask.get_concrete_function(tf.TensorSpec(None, dtype))


def refused(signature, request):
    """What it says of a request."""
    with pytest.raises(tf.errors.InvalidArgumentError) as found:
        in_any_shape(signature, request.dtype)(request)
    return str(found.value)


def test_all_signatures_answer_alike(images):
    pixels = images["serving_default"](IMAGES)
    encoded = images["image_bytes"](PICTURES)
    for name, values in pixels.items():
        np.testing.assert_array_equal(values, encoded[name])


def test_the_best_five_classes_are_named_in_order(images):
    prediction = images["serving_default"](IMAGES)
    probabilities = prediction["probabilities"].numpy()
    order = np.argsort(-probabilities, axis=1)[:, :5]
    np.testing.assert_array_equal(
        prediction["top_labels"].numpy(), np.array(CLASSES, "S")[order]
    )
    np.testing.assert_array_equal(
        prediction["top_scores"], np.take_along_axis(probabilities, order, axis=1)
    )
    few = registry.load("tasks", "image_classification")(
        {"class_names": ["x", "y"], "image_shape": SHAPE}
    )
    two = signatures(few, lambda inputs, training: sums(inputs, training)[:, :2])
    assert two["serving_default"](tf.constant(IMAGES))["top_labels"].shape == (3, 2)


def test_a_temperature_makes_the_answers_less_sure():
    warm = signatures(
        classifier(temperature=50.0), lambda x, training: sums(x, training) / 10
    )
    cold = signatures(classifier(), lambda x, training: sums(x, training) / 500)
    np.testing.assert_allclose(
        warm["serving_default"](IMAGES)["probabilities"],
        cold["serving_default"](IMAGES)["probabilities"],
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    ("signature", "request_", "message"),
    [
        ("serving_default", IMAGES[0], "not compatible with expected shape"),
        ("serving_default", IMAGES[:, :5], "not compatible with expected shape"),
        ("serving_default", IMAGES[:0], "the batch is empty"),
        ("image_bytes", PICTURES[0], "not compatible with expected shape"),
        ("image_bytes", np.array([], object), "the batch is empty"),
        ("image_bytes", [PICTURES[0], b""], "not a JPEG"),
        (
            "image_bytes",
            [b"\x89PNG\r\n\x1a\n" + bytes(2**26)],
            "67108864 bytes",
        ),
    ],
)
def test_a_wrong_request_for_images_is_an_invalid_argument(
    images, signature, request_, message
):
    dtype = tf.uint8 if signature == "serving_default" else tf.string
    assert re.search(message, refused(images[signature], tf.constant(request_, dtype)))


def test_an_overflow_inside_the_network_is_no_answer():
    broken = signatures(
        classifier(), lambda inputs, training: sums(inputs, training) * np.inf
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="network must be finite"):
        broken["serving_default"](IMAGES)


def test_regression_answers_rows(numbers):
    rows = np.float32([[1, 2], [3, 4]])
    prediction = numbers["serving_default"](rows)["prediction"]
    np.testing.assert_allclose(prediction, [1.0, 6.0])


@pytest.mark.parametrize(
    ("signature", "request_", "message"),
    [
        ("serving_default", np.float32([[np.nan, 1]]), "features must be finite"),
        ("serving_default", np.float32([[3e38, 0]]), "features must be finite"),
        ("serving_default", np.float32([1, 2]), "not compatible with expected shape"),
        ("serving_default", np.zeros((0, 2), np.float32), "the batch is empty"),
    ],
)
def test_a_wrong_request_for_numbers_is_an_invalid_argument(
    numbers, signature, request_, message
):
    assert re.search(message, refused(numbers[signature], tf.constant(request_)))


def test_files_of_examples_are_of_both_formats_and_of_another_size():
    files = [
        Image.open(io.BytesIO(contents))
        for contents in request_guards.encode_images(PIXELS)
    ]
    assert [file.format for file in files] == ["PNG", "JPEG", "PNG", "PNG"]
    assert [file.size for file in files] == [(12, 16), (12, 16), (24, 32), (12, 16)]
    np.testing.assert_array_equal(np.asarray(files[0]), PIXELS[0])
    np.testing.assert_array_equal(
        np.asarray(files[2])[8:-8:2, 8:-8:2], PIXELS[2][4:-4, 4:-4]
    )
