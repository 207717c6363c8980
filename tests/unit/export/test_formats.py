"""The other file formats of a version: model.keras, model.tflite, model.onnx."""

import importlib.util

import keras
import pytest

from pipeline.config import command_line
from pipeline.export import formats
from pipeline.training import preflight
from pipeline.utils.errors import UsageError


def test_own_layers_need_their_definition(tmp_path):
    class Mine(keras.layers.Layer):
        def call(self, x):
            return x

    keras.Sequential([keras.Input((3,)), Mine()]).save(tmp_path / "model.keras")
    with pytest.raises(ImportError, match="definition of layers"):
        formats._keras(tmp_path / "model.keras")


def test_a_missing_package_is_named_before_training(monkeypatch):
    config = command_line.configure(["digits", "--export.formats", "keras", "onnx"])
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n: None if "onnx" in n else real(n)
    )
    with pytest.raises(UsageError, match="onnx needs .*pip install tf2onnx"):
        preflight.check(config)
    preflight.check(config.changed(export={"formats": ("keras", "litert")}))


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
@pytest.mark.parametrize("kind", ["layer", "activation"])
def test_python_lambdas_are_not_loaded(tmp_path, kind):
    layer = {
        "layer": lambda: keras.layers.Lambda(lambda x: x / 2),
        "activation": lambda: keras.layers.Activation(lambda x: x / 2),
    }[kind]()
    keras.Sequential([keras.Input((3,)), layer]).save(tmp_path / "model.keras")
    with pytest.raises(ImportError):
        formats._keras(tmp_path / "model.keras")
