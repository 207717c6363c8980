"""Loads the weights of an earlier run or of a file into a new network."""

import json
import warnings
import zipfile
from pathlib import Path

import keras
import numpy as np

from pipeline.layers.nested import all_layers
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training.train_step import SteppedModel
from pipeline.utils.errors import UsageError, reason


def set_weights(model: keras.Layer, weights: list[np.ndarray]) -> None:
    """Sets all weights of a model, also inside its Normalization layers."""
    model.set_weights(weights)
    for layer in [model, *all_layers(model)]:
        if isinstance(layer, keras.layers.Normalization):
            # Computes mean and deviation from the weights; Keras does that only in
            # `load_weights`.
            layer.finalize_state()


def without_optimizer(model: keras.Model) -> keras.Model:
    """The same model without an optimizer, for files of weights only."""
    return keras.Model(model.input, model.output, name=model.name)


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
                without_optimizer(model.to_keras_model()).load_weights(file)
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
        if not all(tuple(v.shape) == value.shape for v, value in pairs):
            pairs = _of_same_names(variables, loaded) or pairs
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
    new_values = {id(variable): value for variable, value in pairs}
    weights = zip(variables, model.get_weights(), strict=True)
    set_weights(
        model, [new_values.get(id(variable), value) for variable, value in weights]
    )
    note = f"{len(pairs)} of {len(variables)} weights from {path}"
    new = {v.path.rpartition("/")[0] for v in variables if id(v) not in new_values}
    if len(new) == 1:
        note += "; the output layer is new"
    elif new:
        note += f"; {len(new)} layers are new"
    return note


def _of_same_names(
    variables: list[keras.Variable], loaded: keras.Model
) -> list[tuple[keras.Variable, np.ndarray]]:
    """Pairs of variables and values for a network that begins with another one, such as
    a detector with the network of a classification.

    Empty unless all layers of the other one but its output layer are in the network,
    with the same shapes.
    """
    by_path = {variable.path: variable for variable in variables}
    output_layer = loaded.weights[-1].path.rpartition("/")[0]
    pairs = []
    for source, value in zip(loaded.weights, loaded.get_weights(), strict=True):
        if source.path.rpartition("/")[0] == output_layer:
            continue
        variable = by_path.get(source.path)
        if variable is None or tuple(variable.shape) != value.shape:
            return []
        pairs.append((variable, value))
    return pairs


def _class_names(file: Path) -> list[str] | None:
    """Returns the class names that this package wrote into a `.keras` file."""
    try:
        with zipfile.ZipFile(file) as archive:
            return json.loads(archive.read("metadata.json"))["task"].get("class_names")
    except (OSError, LookupError, ValueError, zipfile.BadZipFile):
        return None
