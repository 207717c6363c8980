"""Loads the weights of an earlier run or of a file into a new network."""

import json
import warnings
import zipfile
from pathlib import Path

import keras
import numpy as np

from pipeline.runtime.run_directory import RunDirectory
from pipeline.training import plain_model
from pipeline.training.train_step import SteppedModel
from pipeline.utils.errors import UsageError, reason


def set_weights(model: keras.Layer, weights: list[np.ndarray]) -> None:
    """Sets all weights of a model, also inside its Normalization layers."""
    model.set_weights(weights)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization):
            # Computes mean and deviation from the weights; Keras does that only in
            # `load_weights`.
            layer.finalize_state()


def load(model: SteppedModel, path: Path) -> str:
    """Loads weights into a new network; returns a sentence about them.

    Args:
        model: The new network.
        path: A finished run, its `.keras` file, or a `.weights.h5` file of that model.

    Raises:
        UsageError: The path is none of these, or the layers differ.
    """
    file = RunDirectory(path).model if path.is_dir() else path
    if not file.is_file():
        problem = "is not a file"
        if path.is_dir():
            problem = "has no model.keras; let that run finish"
        raise UsageError(f"--model.weights: {path} {problem}")
    try:
        if file.name.endswith(".weights.h5"):
            with warnings.catch_warnings(action="error", category=UserWarning):
                plain_model.without_optimizer(model.to_keras_model()).load_weights(file)
            return f"weights of {path}"
        loaded = keras.models.load_model(file, compile=False)
    except (OSError, ValueError, TypeError, KeyError, UserWarning) as error:
        raise UsageError(
            f"--model.weights: {file} does not fit: {reason(error)}"
        ) from None
    values = loaded.get_weights()
    variables = model.weights
    pairs = list(zip(variables, values, strict=False))
    same_classes = _class_names(file) in (None, model.task.metadata.get("class_names"))
    same_count = len(values) == len(variables)
    has_same_head = (
        same_classes and same_count and values[-1].shape == variables[-1].shape
    )
    if not has_same_head:
        layers = [variable.path.rpartition("/")[0] for variable in variables]
        pairs = pairs[: len(variables) - layers.count(layers[-1])]
    if not pairs:
        raise UsageError(
            f"--model.weights: {file} does not fit: no layer before the output layer"
            " has weights"
        )
    for variable, value in pairs:
        if tuple(variable.shape) != value.shape:
            raise UsageError(
                f"--model.weights: {file} does not fit: {variable.path} has shape "
                f"{tuple(variable.shape)}, but the file has {value.shape}"
            )
    count = len(pairs)
    set_weights(model, [*values[:count], *model.get_weights()[count:]])
    note = f"{count} of {len(variables)} weights from {path}"
    if count < len(variables):
        note += "; the output layer is new"
    return note


def _class_names(file: Path) -> list[str] | None:
    """Returns the class names that this package wrote into a `.keras` file."""
    try:
        with zipfile.ZipFile(file) as archive:
            return json.loads(archive.read("metadata.json"))["task"].get("class_names")
    except (OSError, LookupError, ValueError, zipfile.BadZipFile):
        return None
