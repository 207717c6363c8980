"""The `.keras` file of a run, which Keras loads without this package."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

_METADATA = "metadata.json"


def own_layers(model: keras.Model) -> list[keras.Layer]:
    """The layers whose classes are not Keras's, so that loading the file needs their definition."""
    layers = model._flatten_layers(include_self=False)
    return [layer for layer in layers if not type(layer).__module__.startswith("keras.")]


def add_metadata(path: Path, metadata: Mapping[str, Any]) -> None:
    """Adds the class names, and what else the task has learned, to `metadata.json` in the file."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    about = {**json.loads(parts[_METADATA]), "task": dict(metadata)}
    parts[_METADATA] = json.dumps(about).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
