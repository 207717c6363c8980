"""Directories whose names TensorFlow takes for patterns."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.serving.savedmodel_session import Session
from pipeline.utils import tf_paths

NAMES = ["photos [2024]", "[a-c]", "back\\slash", "in [a/nd out]", "* and ? [x]"]


@pytest.fixture(scope="module")
def module():
    module = tf.Module()
    module.weight = tf.Variable([2.0, 3.0])
    return module


@pytest.mark.parametrize("name", NAMES)
def test_variables_are_restored_from_any_directory(module, tmp_path, name):
    directory = tmp_path / name
    directory.mkdir(parents=True)
    checkpoint = tf.train.Checkpoint(module=module)
    checkpoint.write(str(directory / "state"))
    module.weight.assign([0.0, 0.0])
    with tf_paths.literal(directory) as path:
        checkpoint.read(f"{path}/state").assert_consumed()
    assert module.weight.numpy().tolist() == [2.0, 3.0]


@pytest.mark.parametrize("name", NAMES[:3])
def test_a_saved_model_is_loaded_from_any_directory(module, tmp_path, name):
    spec = tf.TensorSpec((None, 2), tf.float32, name="x")
    product = tf.function(lambda x: {"y": x * module.weight}, input_signature=[spec])
    module.product = product
    tf.saved_model.save(module, str(tmp_path / name), signatures=product)
    prediction = Session(tmp_path / name).run(
        "serving_default", {"x": np.ones((1, 2), np.float32)}
    )
    assert prediction["y"].tolist() == [[2.0, 3.0]]


def test_a_plain_path_is_left_as_it_is(tmp_path):
    for path in (tmp_path, tmp_path / "absent [1]"):
        with tf_paths.literal(path) as found:
            assert found == str(path)
