"""The manifest of a version: its properties and a digest of every file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.utils import files, safe_io
from pipeline.utils.errors import Failure, reason

MANIFEST = Path("assets.extra/manifest.json")
GOLDEN = Path("assets.extra/golden.npz")
"""Real examples with the predictions of the trained model."""


def write(directory: Path, properties: Mapping[str, Any]) -> None:
    """Writes the properties of a version, and sha256 and size of all other files."""
    manifest = {**properties, "files": entries(directory)}
    files.write_json(directory / MANIFEST, manifest)


def read(directory: Path) -> dict[str, Any]:
    """Reads the manifest of a version; raises Failure if it cannot be read."""
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
    """Reads the manifest of a version; empty if it cannot be read."""
    try:
        return read(directory)
    except Failure:
        return {}


def check(directory: Path, manifest: dict[str, Any]) -> str:
    """Compares the files of a version with its manifest and returns a summary.

    Raises:
        Failure: Files are missing, new, or different; the message names them all.
    """
    actual = entries(directory)
    expected = manifest["files"]
    extra = sorted(actual.keys() - expected.keys())
    problems = [f"{name} is not in the manifest" for name in extra]
    for name, entry in sorted(expected.items()):
        if name not in actual:
            problems.append(f"{name} is missing")
        elif actual[name] != entry:
            problems.append(f"{name} has changed")
    if problems:
        raise Failure("; ".join(problems))
    return f"{len(expected)} files match the manifest"


def entries(
    directory: Path, patterns: Sequence[str] = ("**/*",)
) -> dict[str, dict[str, Any]]:
    """Maps every file that matches, except the manifest, to its sha256 and size."""
    paths: set[Path] = set()
    for pattern in patterns:
        paths.update(directory.glob(pattern))
    table = {}
    for path in sorted(paths - {directory / MANIFEST}):
        if path.is_file():
            name = path.relative_to(directory).as_posix()
            size = path.stat().st_size
            table[name] = {"sha256": files.sha256(path), "size": size}
    return table
