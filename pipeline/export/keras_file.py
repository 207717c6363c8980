"""The `.keras` file of a run, which Keras loads without this package."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_METADATA = "metadata.json"


def add_metadata(path: Path, metadata: Mapping[str, Any]) -> None:
    """Adds the class names, and what else the task has learned, to `metadata.json` in the file."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    about = {**json.loads(parts[_METADATA]), "task": dict(metadata)}
    parts[_METADATA] = json.dumps(about).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
