"""Atomic writes of files and directories: a reader sees a complete file or none."""

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.utils import temp_files
from pipeline.utils.errors import UsageError


def publish_as(folder: Path, target: Path) -> None:
    """Flushes a finished directory to disk and renames it to `target`."""
    for path in [*folder.rglob("*"), folder]:
        _flush(path)
    folder.chmod(0o755)  # the server may run as another user
    folder.rename(target)
    temp_files.release(folder)
    _flush(target.parent)


def write_json(path: Path, values: Any) -> None:
    """Writes values as JSON, as `write_text` does."""
    text = json.dumps(strict(values), indent=2)
    # A list of plain values goes on one line, such as a row of a confusion matrix.
    text = re.sub(r"\[[^\[\]{}]*\]", lambda match: " ".join(match[0].split()), text)
    write_text(path, text + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a temporary file and renames it, so that the old or the new file is
    complete.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes bytes in the same way as `write_text`."""
    write_parts(path, [content])


def write_parts(path: Path, parts: Iterable[bytes]) -> None:
    """Writes bytes one part after the other, in the same way as `write_text`."""
    try:
        beside = temp_files.file(path.parent)
        try:
            with beside.open("wb") as file:
                file.writelines(parts)
            _flush(beside)
            beside.rename(path)
            _flush(path.parent)
        finally:
            temp_files.remove(beside)
    except OSError as error:  # name the target, not the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from None


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def strict(values: Any) -> Any:
    """The same values with null for NaN and infinities, which JSON does not have."""
    if isinstance(values, dict):
        return {name: strict(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [strict(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return None
    return values


def make_next(parent: Path, stem: str) -> Path:
    """Creates the next free directory PARENT/STEM-N."""
    number = 1
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        path = parent / f"{stem}-{number}"
        try:
            path.mkdir()  # fails if it exists, so two runs never get the same one
            return path
        except FileExistsError:
            number += 1


def require_outside(path: Path, data: Path | None, flag: str) -> None:
    """Raises UsageError if the path is inside the data, where it would look like a
    class.
    """
    if not data or not data.is_dir():
        return
    if Path(os.path.realpath(path)).is_relative_to(data.resolve()):
        raise UsageError(
            f"{flag}: {path} is inside the data directory {data}; choose another path"
        )


def check_writable(path: Path, flag: str) -> None:
    """Raises UsageError unless the directory, or its closest existing parent, is
    writable.
    """
    folder = path
    while not os.path.lexists(folder):
        folder = folder.parent
    try:
        if not folder.is_dir():
            raise UsageError(
                f"{flag}: {folder} is not a directory; choose another path"
            )
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"{flag}: cannot write into {folder}: {error.strerror}"
        ) from None


def has_home() -> bool:
    """Whether the user has a home directory.

    There is none in a container that runs with `--user 1234`.
    """
    return os.path.isabs(os.path.expanduser("~"))


def temporary_home() -> Path:
    """A directory among the temporary files, for a user without a home directory."""
    return Path(tempfile.gettempdir(), f"pipeline-{os.getuid()}")
