"""Weights of an earlier run, or of a file, as the start of another one."""

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
    """Sets all weights of a model, and what its Normalization layers calculate from
    them.
    """
    model.set_weights(weights)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()  # which Keras calls in `load_weights` only


def load(model: SteppedModel, path: Path) -> str:
    """Copies the weights of a finished run, a `.keras` file or a `.weights.h5` file of
    such a model into a new network; returns a sentence about it.

    Raises:
        UsageError: The path is none of these, or has other layers.
    """
    file = RunDirectory(path).model if path.is_dir() else path
    if not file.is_file():
        what = (
            "has no model.keras; let that run finish"
            if path.is_dir()
            else "is not a file"
        )
        raise UsageError(f"--model.weights: {path} {what}")
    try:
        if file.name.endswith(".weights.h5"):
            with warnings.catch_warnings(action="error", category=UserWarning):
                plain_model.uncompiled(model.plain()).load_weights(file)
            return f"weights of {path}"
        loaded = keras.models.load_model(file, compile=False)
    except (OSError, ValueError, TypeError, KeyError, UserWarning) as error:
        raise UsageError(
            f"--model.weights: {file} does not fit: {reason(error)}"
        ) from None
    values, new = loaded.get_weights(), model.weights
    same = _class_names(file) in (None, model.task.metadata.get("class_names"))
    kept = list(zip(new, values, strict=False))
    if not same or len(values) != len(new) or values[-1].shape != new[-1].shape:
        layers = [variable.path.rpartition("/")[0] for variable in new]
        kept = kept[: len(new) - layers.count(layers[-1])]
    if not kept:
        raise UsageError(
            f"--model.weights: {file} does not fit: no layer before the output layer"
            " has weights"
        )
    for variable, value in kept:
        if tuple(variable.shape) != value.shape:
            raise UsageError(
                f"--model.weights: {file} does not fit: {variable.path} has shape "
                f"{tuple(variable.shape)}, but the file has {value.shape}"
            )
    set_weights(
        model, [*(value for _, value in kept), *model.get_weights()[len(kept) :]]
    )
    added = "" if len(kept) == len(new) else "; the output layer is new"
    return f"{len(kept)} of {len(new)} weights from {path}{added}"


def _class_names(file: Path) -> list[str] | None:
    """The class names that this package wrote into a `.keras` file."""
    try:
        with zipfile.ZipFile(file) as archive:
            return json.loads(archive.read("metadata.json"))["task"].get("class_names")
    except (OSError, LookupError, ValueError, zipfile.BadZipFile):
        return None
