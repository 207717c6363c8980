"""Sharded TFRecord files: which belong together, and a manifest that finds what is cut or changed.

`python -m pipeline.shards FOLDER > FOLDER/shards.json` writes one; every later run compares it.
"""

import hashlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from pipeline.data.sources import _record_files
from pipeline.utils import safe_io
from pipeline.utils.errors import UsageError

MANIFEST = "shards.json"
_SHARD = re.compile(r"(.*)-(\d{5,})-of-(\d{5,})")


def is_shard(name: str) -> bool:
    """Whether a file is taken for TFRecords by its name: `x.tfrecord`, `x-00000-of-00010`, ..."""
    known = ".tfrec" in name.lower() or _SHARD.fullmatch(name)
    return bool(known) and not name.startswith(".")


def records(files: Sequence[Path]) -> _record_files.Records:
    """All records of these files.

    Raises:
        UsageError: As for `record_files.index`; or a shard of `...-00000-of-00010` is missing, or a
            manifest beside the files says otherwise.
    """
    require_all(files)
    found = _record_files.index(files)
    counts = (found.first[1:] - found.first[:-1]).tolist()
    for folder in sorted({path.parent for path in files if (path.parent / MANIFEST).is_file()}):
        here = zip(files, counts, strict=True)
        _compare(folder, {path.name: count for path, count in here if path.parent == folder})
    return found


def note(files: Sequence[Path]) -> str | None:
    """What a person should know of files that no manifest tells of; None if there are none."""
    bare = sorted({path.parent for path in files if not (path.parent / MANIFEST).is_file()})
    if not bare:
        return None
    folder, target = (shlex.quote(str(path)) for path in (bare[0], bare[0] / MANIFEST))
    return (
        f"{bare[0]} has no {MANIFEST}, so a file that was cut between two records would not be "
        f"noticed; python -m pipeline.shards {folder} > {target} writes one"
    )


def require_all(files: Sequence[Path]) -> None:
    """Raises UsageError naming the first shard that is not among the files."""
    there = set(files)
    for path in files:
        if found := _SHARD.fullmatch(path.name):
            stem, number, count = found.groups()
            for at in range(int(count)):
                wanted = f"{stem}-{at:0{len(number)}}-of-{count}"
                if path.with_name(wanted) not in there:
                    raise UsageError(f"{path.parent}: the shard {wanted} is missing")


def manifest(folder: Path) -> dict[str, dict[str, int | str]]:
    """File name -> {"examples": count, "sha256": digest} of the TFRecord files in a folder."""
    try:
        files = sorted(path for path in folder.iterdir() if is_shard(path.name))
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from None
    if not files:
        raise UsageError(f"{folder} holds no TFRecord files, such as train-00000-of-00010")
    return {
        path.name: {"examples": len(_record_files.index([path])), "sha256": _sha256(path)}
        for path in files
    }


def _compare(folder: Path, counts: dict[str, int]) -> None:
    path = folder / MANIFEST
    try:
        said = safe_io.read_json(path)
        wanted = {str(n): (int(v["examples"]), str(v["sha256"])) for n, v in said.items()}
        if any("/" in name or "\0" in name for name in wanted):
            raise ValueError("a name that leads out of the folder")
    except (OSError, ValueError, OverflowError, TypeError, KeyError, AttributeError):
        meant = '{"FILE": {"examples": 10, "sha256": "..."}}'
        raise UsageError(f"{path} is not of the form {meant}") from None
    for name, (examples, digest) in wanted.items():
        if not (folder / name).is_file():
            raise UsageError(f"{folder}: {name} is missing, which {MANIFEST} names")
        if counts.get(name, examples) != examples:
            raise UsageError(
                f"{folder / name} holds {counts[name]} examples, {MANIFEST} says {examples}"
            )
        if name in counts and _sha256(folder / name) != digest:
            raise UsageError(f"{folder / name} has another sha256 than {MANIFEST} says")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
