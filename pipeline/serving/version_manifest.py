"""The manifest of a version: whether its files are those that were written, and what it says."""

import hashlib
import os
from pathlib import Path
from typing import Any

from pipeline.utils import files, safe_io
from pipeline.utils.errors import Failure

MANIFEST = Path("assets.extra/manifest.json")
GOLDEN = Path("assets.extra/golden.npz")
"""Real examples with the answers of the trained model."""
# It cannot hold its own digest.
_WITHOUT = {str(MANIFEST)}


def read(directory: Path) -> dict[str, Any]:
    """What the manifest of a version says.

    Raises:
        Failure: It is missing, cannot be read, or is not a manifest.
    """
    path = directory / MANIFEST
    if not os.path.lexists(path):
        raise Failure(f"{MANIFEST} is missing: nothing tells which files were written")
    try:
        manifest = safe_io.read_json(path)
    except (OSError, ValueError) as error:
        raise Failure(f"{MANIFEST} cannot be read: {error}") from None
    listed = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(listed, dict) or not all(map(_is_entry, listed.values())):
        raise Failure(f"{MANIFEST} lists no files with their sha256 and size")
    return manifest


def about(directory: Path) -> dict[str, Any]:
    """What the manifest of a version says; empty if it has none, or one that cannot be read."""
    try:
        found = files.expand_home(safe_io.read_json(directory / MANIFEST))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and {"sha256", "size"} <= set(entry)


def require_files(directory: Path) -> None:
    """Raises Failure for what is no regular file: a link leads elsewhere, a pipe never ends."""
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Failure(f"{path.relative_to(directory)} is no regular file")


def check(directory: Path, manifest: dict[str, Any]) -> str:
    """That every file of the version is the one that was written, and none is missing or more.

    Raises Failure naming all files for which that does not hold.
    """
    require_files(directory)
    wanted = manifest["files"]
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    there = {path.relative_to(directory).as_posix(): path for path in paths}
    added = set(there) - set(wanted) - _WITHOUT
    wrong = [f"{name} is not in the manifest: it was added afterwards" for name in sorted(added)]
    for name, entry in sorted(wanted.items()):
        if name not in there:
            wrong.append(f"{name} is missing")
            continue
        with safe_io.opened(there[name]) as file:
            same = os.fstat(file.fileno()).st_size == entry["size"]  # reading 2 TB takes hours
            if not same or hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                wrong.append(f"{name} is not what was written: another size or sha256")
    if wrong:
        raise Failure("; ".join(wrong))
    return f"{len(wanted)} files are what was written"
