"""Writes the manifest of an exported version: its properties and a digest of every file."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.sections import Export
from pipeline.serving.version_manifest import MANIFEST
from pipeline.utils import files


def digests(directory: Path) -> dict[str, dict[str, Any]]:
    """Relative path -> `sha256` and `size` in bytes, of every file except the manifest."""
    found = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*")}
    return {
        name: {"sha256": _sha256(path), "size": path.stat().st_size}
        for name, path in sorted(found.items())
        if path.is_file() and name != str(MANIFEST)
    }


def options(export: Export) -> dict[str, Any]:
    """The options that determine the content of a version, as `options` in the manifest."""
    return {
        "precision": export.precision,
        "batch_sizes": sorted(set(export.batch_sizes)),
        "calibrate": export.calibrate,
    }


def write(directory: Path, about: Mapping[str, Any]) -> None:
    """Writes `about` and the digests of all files, which must be complete."""
    files.write_json(directory / MANIFEST, {**about, "files": digests(directory)})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
