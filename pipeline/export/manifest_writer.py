"""Writes the manifest of an exported version: its properties and a digest of every file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.sections import Export
from pipeline.serving import version_manifest
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
    """Writes `about` and, as `files`, sha256 and size of every other file; all must be complete."""
    entries = version_manifest.entries(directory)
    files.write_json(directory / MANIFEST, {**about, "files": entries})
