"""The `.keras` file of a run, which Keras loads without this package."""

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from pipeline.utils import files, temp_files

_METADATA = "metadata.json"


def own_layers(model: keras.Model) -> list[keras.Layer]:
    """The layers whose classes are not Keras's, so that loading the file needs their definition."""
    layers = model._flatten_layers(include_self=False)
    return [layer for layer in layers if not type(layer).__module__.startswith("keras.")]


def write(path: Path, model: keras.Model, metadata: Mapping[str, Any]) -> None:
    """Saves a model; `metadata.json` in the file names its `own_layers` and what the task knows."""
    with temp_files.temporary() as folder:
        model.save(folder / path.name)
        with zipfile.ZipFile(folder / path.name) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
    own = sorted({type(layer).__name__ for layer in own_layers(model)})
    about = {**json.loads(parts[_METADATA]), "task": dict(metadata), "own_layers": own}
    parts[_METADATA] = json.dumps(about).encode()
    contents = io.BytesIO()
    with zipfile.ZipFile(contents, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    files.write_bytes(path, contents.getvalue())


def undefined(path: Path) -> list[str]:
    """The names of the layers that a file of `write` needs the definition of."""
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(_METADATA)).get("own_layers", [])
