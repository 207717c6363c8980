"""Sharded TFRecord files: missing shards, and a manifest that reveals truncated or changed files.

`python -m pipeline.shards DIRECTORY > DIRECTORY/shards.json` writes the manifest; every later run
compares the files with it.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from pipeline.data.sources import _record_files
from pipeline.utils import files, safe_io
from pipeline.utils.errors import UsageError

MANIFEST = "shards.json"
_SHARD = re.compile(r"(.*)-(\d{5,})-of-(\d{5,})")


def is_shard(name: str) -> bool:
    """Whether this is the name of a TFRecord file: `x.tfrecord`, `x-00000-of-00010`, ..."""
    known = ".tfrec" in name.lower() or _SHARD.fullmatch(name)
    return bool(known) and not name.startswith(".")


def records(paths: Sequence[Path]) -> _record_files.Records:
    """All records of these files.

    Raises UsageError if a file is missing, damaged, or differs from the manifest.
    """
    _require_all(paths)
    found = _record_files.index(paths)
    for folder in sorted({path.parent for path in paths if (path.parent / MANIFEST).is_file()}):
        _compare(folder, paths)
    return found


def manifest(folder: Path) -> dict[str, dict[str, int | str]]:
    """Maps the TFRecord files in a directory to {"examples": count, "sha256": digest}."""
    try:
        paths = sorted(path for path in folder.iterdir() if is_shard(path.name))
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from None
    if not paths:
        raise UsageError(f"{folder} contains no TFRecord files, such as train-00000-of-00010")
    return {
        path.name: {"examples": len(_record_files.index([path])), "sha256": files.sha256(path)}
        for path in paths
    }


def _require_all(paths: Sequence[Path]) -> None:
    present = set(paths)
    for path in paths:
        if found := _SHARD.fullmatch(path.name):
            stem, number, count = found.groups()
            for at in range(int(count)):
                name = f"{stem}-{at:0{len(number)}}-of-{count}"
                if path.with_name(name) not in present:
                    raise UsageError(f"{path.parent}: the shard {name} is missing")


def _compare(folder: Path, paths: Sequence[Path]) -> None:
    """Raises UsageError if a file in the manifest is missing, or one of `paths` has changed."""
    path = folder / MANIFEST
    try:
        entries = safe_io.read_json(path).items()
        expected = {folder / Path(name).name: str(entry["sha256"]) for name, entry in entries}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"{path} was not written by python -m pipeline.shards") from None
    for file, digest in expected.items():
        if not file.is_file() or (file in paths and files.sha256(file) != digest):
            raise UsageError(f"{file} is missing or does not match the sha256 in {MANIFEST}")
