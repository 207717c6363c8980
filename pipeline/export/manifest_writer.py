"""Writes the manifest of an exported version: its properties and a digest of every file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.sections import Export
from pipeline.serving.version_manifest import MANIFEST
from pipeline.utils import files


def options(export: Export) -> dict[str, Any]:
    """The options that determine the content of a version, as `options` in the manifest."""
    return {
        "precision": export.precision,
        "batch_sizes": sorted(set(export.batch_sizes)),
        "calibrate": export.calibrate,
    }


def write(directory: Path, about: Mapping[str, Any]) -> None:
    """Writes `about` and, as `files`, sha256 and size of every file; they must be complete."""
    entries = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path != directory / MANIFEST:
            entry = {"sha256": files.sha256(path), "size": path.stat().st_size}
            entries[path.relative_to(directory).as_posix()] = entry
    files.write_json(directory / MANIFEST, {**about, "files": entries})
