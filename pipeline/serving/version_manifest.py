"""The manifest of a version: its properties and a digest of every file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.utils import files, safe_io
from pipeline.utils.errors import Failure, reason

MANIFEST = Path("assets.extra/manifest.json")
GOLDEN = Path("assets.extra/golden.npz")
"""Real examples with the answers of the trained model."""


def write(directory: Path, about: Mapping[str, Any]) -> None:
    """Writes `about`, and as `files` the sha256 and size of all other files, which are
    complete.
    """
    files.write_json(directory / MANIFEST, {**about, "files": entries(directory)})


def read(directory: Path) -> dict[str, Any]:
    """Returns the manifest of a version; raises Failure if it is missing or cannot be
    read.
    """
    try:
        manifest = safe_io.read_json(directory / MANIFEST)
        if not isinstance(manifest["files"], dict):
            raise TypeError("it does not list files")
    except FileNotFoundError:
        raise Failure(f"{MANIFEST} is missing") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Failure(f"{MANIFEST} cannot be read: {reason(error)}") from None
    return manifest


def properties(directory: Path) -> dict[str, Any]:
    """Returns the manifest of a version; empty if it is missing or cannot be read."""
    try:
        return read(directory)
    except Failure:
        return {}


def check(directory: Path, manifest: dict[str, Any]) -> str:
    """Compares the files of a version with its manifest and returns a summary.

    Raises:
        Failure: Files are missing, new, or different; the message names them all.
    """
    found, wanted = entries(directory), manifest["files"]
    wrong = [
        f"{name} is not in the manifest"
        for name in sorted(found.keys() - wanted.keys())
    ]
    for name, entry in sorted(wanted.items()):
        if name not in found:
            wrong.append(f"{name} is missing")
        elif found[name] != entry:
            wrong.append(f"{name} has changed")
    if wrong:
        raise Failure("; ".join(wrong))
    return f"{len(wanted)} files match the manifest"


def entries(
    directory: Path, patterns: Sequence[str] = ("**/*",)
) -> dict[str, dict[str, Any]]:
    """Maps the name of every file that matches, except the manifest, to its sha256 and
    size.
    """
    return {
        path.relative_to(directory).as_posix(): {
            "sha256": files.sha256(path),
            "size": path.stat().st_size,
        }
        for path in sorted(
            path for pattern in patterns for path in directory.glob(pattern)
        )
        if path.is_file() and path != directory / MANIFEST
    }
