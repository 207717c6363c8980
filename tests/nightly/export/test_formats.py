"""The other file formats of a version: model.keras, model.tflite, model.onnx."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.export import formats, proof
from pipeline.export.savedmodel import export, write
from pipeline.serving import version_manifest
from pipeline.utils.errors import Failure, UsageError


@pytest.mark.parametrize("name", formats.FILES)
def test_each_format_answers_as_the_saved_model(digits_run, tmp_path, name):
    if name == "onnx":
        pytest.importorskip("tf2onnx")
        pytest.importorskip("onnxruntime")
    config = digits_run.config.changed(export={"formats": (name,)})
    arguments = (digits_run.network, digits_run.task, config, digits_run.splits["test"])
    write(tmp_path, *arguments, metrics={}, trained={})
    file = formats.FILES[name]
    assert file in version_manifest.read(tmp_path)["files"]
    found = formats.check(tmp_path, file)
    assert float(found.partition("largest difference ")[2].partition(";")[0]) < 2e-6
    golden = proof.read_golden(tmp_path / proof.GOLDEN)
    golden["serving_default"]["outputs"]["probabilities"] += 2e-5
    proof.write_golden(tmp_path / proof.GOLDEN, golden)
    with pytest.raises(
        Failure, match="probabilities: differs by 2e-05 in a batch of 1"
    ):
        formats.check(tmp_path, file)


def test_gelu_is_converted_to_onnx_and_an_unknown_operation_is_named(tmp_path):
    pytest.importorskip("tf2onnx")
    runtime = pytest.importorskip("onnxruntime")
    specs = [tf.TensorSpec((None,), tf.float32, name="x")]
    x = np.linspace(-6, 6, 100, dtype=np.float32)
    gelu = tf.function(
        lambda x: {"y": keras.activations.gelu(x)}, input_signature=specs
    )
    session = runtime.InferenceSession(formats._onnx_model(gelu, specs))
    np.testing.assert_allclose(
        *session.run(["y"], {"x": x}), keras.activations.gelu(x), atol=1e-6
    )
    odd = tf.function(lambda x: {"y": tf.math.betainc(x, x, x)}, input_signature=specs)
    with pytest.raises(Exception, match="No Op registered for Betainc"):
        formats._onnx_model(odd, specs)


def test_the_files_are_checked_in_a_process_of_their_own(digits_run, tmp_path):
    change = {
        "directory": tmp_path,
        "formats": ("keras", "litert"),
        "precision": "float16",
    }
    config = digits_run.config.changed(export=change)
    arguments = (digits_run.network, digits_run.task, config, digits_run.splits["test"])
    outcome = export(*arguments, metrics={}, trained={})
    assert outcome.passed
    assert [check.name for check in outcome.checks][-3:] == [
        "finished",
        "predictions model.keras",
        "predictions model.tflite",
    ]
    model = keras.models.load_model(outcome.directory / "model.keras")
    images = digits_run.splits["test"].take(np.arange(9))["image"]
    golden = proof.read_golden(outcome.directory / proof.GOLDEN)["serving_default"]
    stored = golden["outputs"]["probabilities"][:9]
    np.testing.assert_allclose(model.predict(images, verbose=0), stored, atol=1e-3)


class Unsaved(keras.layers.Layer):
    """Has an argument that its config lacks."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, x):
        return x * self.factor

    def get_config(self):
        raise NotImplementedError("no config")


class Odd(keras.layers.Layer):
    """Uses an operation that LiteRT has not."""

    def call(self, x):
        half = tf.fill(tf.shape(x), 0.5)
        return tf.math.betainc(half, half, tf.sigmoid(x))


def with_unsaved(inputs):
    return Unsaved(2.0)(keras.layers.Flatten()(inputs))


def with_odd(inputs):
    return Odd()(keras.layers.Flatten()(inputs))


def plain(inputs):
    return keras.layers.Flatten()(inputs)


@pytest.mark.parametrize(
    ("model", "name"), [(with_unsaved, "keras"), (with_odd, "litert")]
)
def test_a_format_that_cannot_be_made_is_refused_before_training(
    digits_run, model, name
):
    config = digits_run.config.changed(
        model={"name": model}, export={"formats": (name,)}
    )
    examples = digits_run.splits["train"]
    with pytest.raises(UsageError, match=f"--export.formats {name}: .*; remove {name}"):
        formats.try_out(config, digits_run.task, examples)
    config = config.changed(model={"name": plain})
    formats.try_out(config, digits_run.task, examples)


def test_a_format_that_cannot_be_written_is_left_out(digits_run, tmp_path, monkeypatch):
    def fail(traced):
        raise ValueError("no converter")

    monkeypatch.setattr(formats, "_litert_model", fail)
    config = digits_run.config.changed(export={"formats": ("litert",)})
    arguments = (digits_run.network, digits_run.task, config, digits_run.splits["test"])
    about = write(tmp_path, *arguments, metrics={}, trained={})
    assert about["left_out"] == {"model.tflite": "no converter"}
    assert not formats.list_files(tmp_path) and (tmp_path / "saved_model.pb").is_file()


def test_a_format_whose_answers_differ_is_left_out(digits_run, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_litert_model", lambda traced: b"damaged")
    config = digits_run.config.changed(
        export={"directory": tmp_path, "formats": ("litert",)}
    )
    arguments = (digits_run.network, digits_run.task, config, digits_run.splits["test"])
    outcome = export(*arguments, metrics={}, trained={})
    assert outcome.passed and list(outcome.left_out) == ["model.tflite"]
    assert not formats.list_files(outcome.directory)
    listed = version_manifest.read(outcome.directory)
    assert version_manifest.check(outcome.directory, listed)
