"""The manifest of a version: reading it, and comparing the files of the version with it."""

import hashlib
import os
from pathlib import Path
from typing import Any

from pipeline.utils import files, safe_io
from pipeline.utils.errors import Failure

MANIFEST = Path("assets.extra/manifest.json")
GOLDEN = Path("assets.extra/golden.npz")
"""Real examples with the answers of the trained model."""


def read(directory: Path) -> dict[str, Any]:
    """Returns the manifest of a version.

    Raises:
        Failure: It is missing, cannot be read, or is not a manifest.
    """
    try:
        manifest = safe_io.read_json(directory / MANIFEST)
        listed = list(manifest["files"].values())
    except FileNotFoundError:
        raise Failure(f"{MANIFEST} is missing, so the files cannot be checked") from None
    except (OSError, ValueError) as error:
        raise Failure(f"{MANIFEST} cannot be read: {error}") from None
    except (AttributeError, LookupError, TypeError):
        listed = [None]
    if not all(isinstance(entry, dict) and {"sha256", "size"} <= set(entry) for entry in listed):
        raise Failure(f"{MANIFEST} does not list the files with their sha256 and size")
    return manifest


def about(directory: Path) -> dict[str, Any]:
    """Returns the manifest of a version; empty if it is missing or cannot be read."""
    try:
        manifest = files.expand_home(safe_io.read_json(directory / MANIFEST))
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def require_files(directory: Path) -> None:
    """Raises Failure for anything but regular files and directories, such as links and pipes."""
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Failure(f"{path.relative_to(directory)} is not a regular file")


def check(directory: Path, manifest: dict[str, Any]) -> str:
    """Compares the files of a version with its manifest and returns a summary.

    Raises:
        Failure: Files are missing, new, or different; the message names them all.
    """
    require_files(directory)
    wanted = manifest["files"]
    paths = {p.relative_to(directory).as_posix(): p for p in directory.rglob("*") if p.is_file()}
    added = sorted(set(paths) - set(wanted) - {str(MANIFEST)})  # it cannot contain its own digest
    wrong = [f"{name} is not in the manifest: it was added later" for name in added]
    for name, entry in sorted(wanted.items()):
        if name not in paths:
            wrong.append(f"{name} is missing")
            continue
        with paths[name].open("rb") as file:
            same = os.fstat(file.fileno()).st_size == entry["size"]
            if not same or hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                wrong.append(f"{name} has changed: its size or sha256 differs")
    if wrong:
        raise Failure("; ".join(wrong))
    return f"{len(wanted)} files match the manifest"
