"""What an exported version is and what made it, with a digest of every file: its manifest."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.sections import Export
from pipeline.serving.version_manifest import MANIFEST
from pipeline.utils import files


def digests(folder: Path) -> dict[str, dict[str, Any]]:
    """Path in the folder -> `sha256` and `size` in bytes, of every file but the manifest."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {
        name: {"sha256": files.sha256(path), "size": path.stat().st_size}
        for name, path in sorted(found.items())
        if path.is_file() and name != str(MANIFEST)
    }


def options(export: Export) -> dict[str, Any]:
    """Those that decide what is in a version, as the manifest holds them in `options`."""
    return {
        "precision": export.precision,
        "batch_sizes": sorted(set(export.batch_sizes)),
        "calibrate": export.calibrate,
    }


def write(folder: Path, about: Mapping[str, Any]) -> None:
    """The manifest of a folder, last of all: what is told `about` it, and `files`, its digests."""
    files.write_json(folder / MANIFEST, {**about, "files": digests(folder)})
