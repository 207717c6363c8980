"""The manifest of a version: whether its files are those that were written, and what it says."""

import hashlib
import os
from pathlib import Path
from typing import Any

from pipeline import untrusted
from pipeline.session import Failure

MANIFEST = Path("assets.extra/manifest.json")
# It cannot hold its own digest; the fingerprint has a random number.
_WITHOUT = {str(MANIFEST), "fingerprint.pb"}


def read(directory: Path) -> dict[str, Any] | None:
    """What the manifest of a version says; None for a version of the time before there was one.

    Raises:
        Failure: It cannot be read, or is no manifest.
    """
    path = directory / MANIFEST
    if not os.path.lexists(path):
        return None
    try:
        manifest = untrusted.read_json(path)
    except (OSError, ValueError) as error:
        raise Failure(f"{MANIFEST} cannot be read: {error}") from None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or not all(map(_is_entry, files.values())):
        raise Failure(f"{MANIFEST} lists no files with their sha256 and size")
    return manifest


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and {"sha256", "size"} <= set(entry)


def check(directory: Path, manifest: dict[str, Any] | None) -> str:
    """That every file of the version is the one that was written, and none is missing or more.

    Raises Failure naming the first file of another kind.
    """
    if manifest is None:
        return f"not checked: a version without {MANIFEST}"
    wanted = manifest["files"]
    paths = sorted(path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())
    there = {path.relative_to(directory).as_posix(): path for path in paths}
    for name in sorted(_WITHOUT ^ (_WITHOUT & set(there))):
        raise Failure(f"{name} is missing")
    for name in sorted(set(wanted) - set(there)):
        raise Failure(f"{name} is missing")
    for name in sorted(set(there) - set(wanted) - _WITHOUT):
        raise Failure(f"{name} is not in the manifest: it was added afterwards")
    for name, entry in wanted.items():
        with untrusted.opened(there[name]) as file:
            size, digest = os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256")
        if [size, digest.hexdigest()] != [entry["size"], entry["sha256"]]:
            raise Failure(f"{name} is not what was written: another size or sha256")
    return f"{len(wanted)} files are what was written"
