"""Writing to a disk so that nobody sees half of it: files, folders, versions with numbers."""

import contextlib
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from pipeline.utils import safe_io, temp_files
from pipeline.utils.errors import UsageError

_LAST_VERSION = 2**63 - 1
_GIVEN = ".published"


def publish(folder: Path, parent: Path) -> Path:
    """Moves a finished folder to the next version number in `parent`, in one rename.

    Everything is flushed to the disk first. The number is written down before a folder has it, so
    that none is given twice, whatever is deleted later: a publisher that is killed in between
    leaves a gap. Two publishers never share one: a rename onto a folder that is not empty fails,
    and the loser takes the next number.

    Raises UsageError if no number is left.
    """
    _flush_all(folder)
    while True:
        number = highest(parent) + 1
        if not is_version(str(number)):
            raise UsageError(f"{parent} has no version number left; give another --export.name")
        write_text(parent / _GIVEN, f"{number}\n")
        version = parent / str(number)
        try:
            folder.rename(version)
        except OSError:
            if not os.path.lexists(version):
                raise
            continue
        temp_files.release(folder)
        _flush(parent)
        return version


def highest(parent: Path) -> int:
    """The highest version number that was ever given in a model's folder; 0 where none was."""
    try:
        text = safe_io.read_text(parent / _GIVEN, 100).strip()
    except (OSError, ValueError):
        text = ""
    return max([int(text) if is_version(text) else 0, *versions(parent)])


def publish_as(folder: Path, target: Path) -> None:
    """Moves a finished folder to `target`, in one rename after everything is on the disk."""
    _flush_all(folder)
    folder.rename(target)
    temp_files.release(folder)
    _flush(target.parent)


def versions(parent: Path) -> dict[int, Path]:
    """Number -> folder of the versions in a model's folder, as TensorFlow Serving counts them."""
    return {int(p.name): p for p in parent.glob("*") if is_version(p.name) and p.is_dir()}


def is_version(name: str) -> bool:
    """Whether a folder of this name is served: ASCII digits that make an int64."""
    return name.isascii() and name.isdecimal() and len(name) < 30 and int(name) < _LAST_VERSION


def write_json(path: Path, values: Any) -> None:
    """The values as JSON in a file, written as `write_text` does; `~` for the home folder."""
    text = json.dumps(collapse_home(strict(values)), indent=2)
    # A list of plain values goes on one line: a confusion matrix is then a row a line.
    text = re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), text)
    write_text(path, text + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes beside and renames, so that a reader sees the old file or the new one, whole."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """As `write_text`."""
    beside = None
    try:
        beside = temp_files.file(path.parent)
        beside.write_bytes(content)
        _flush(beside)
        beside.rename(path)
        _flush(path.parent)
    except BaseException as error:
        if beside is not None:
            temp_files.remove(beside)
        if isinstance(error, OSError):  # of the file that is wanted, not of the one beside
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    temp_files.release(beside)


@contextlib.contextmanager
def written(path: Path, keep: Callable[[Path], None]) -> Iterator[TextIO]:
    """A file for text in UTF-8 that gets its name at the end.

    Args:
        path: Its name.
        keep: Moves away what there is before an error; not called where it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temp_files.sweep(path.parent)  # of what was killed
    beside = temp_files.file(path.parent)
    try:
        # Names of files need not be Unicode; the escape is the one of JSON.
        with beside.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
            yield stream
        _flush(beside)
        beside.rename(path)
        _flush(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            if beside.stat().st_size and not isinstance(error, OSError):
                keep(beside)
        temp_files.remove(beside)
        raise
    temp_files.release(beside)


def strict(values: Any) -> Any:
    """The same values with null for numbers that JSON does not have: NaN and the infinities."""
    if isinstance(values, dict):
        return {name: strict(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [strict(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_next(parent: Path, stem: str) -> Path:
    """Makes the next free folder PARENT/STEM-N."""
    number = 1
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        path = parent / f"{stem}-{number}"
        try:
            path.mkdir()  # exclusive: two runs that start together get two folders
            return path
        except FileExistsError:
            number += 1


def require_outside(path: Path, data: Path | None, flag: str) -> None:
    """Raises UsageError if what is written would lie among the data, and be read as such."""
    # Not Path.resolve(), which raises on links that lead in a circle.
    if data and data.is_dir() and Path(os.path.realpath(path)).is_relative_to(data.resolve()):
        raise UsageError(f"{flag}: {path} lies in {data}, the data; give another folder")


def check_writable(path: Path, flag: str) -> None:
    """Raises UsageError unless the folder, or the nearest parent there, can be written into."""
    try:
        _check_writable(path, flag)
    except OSError as error:
        raise UsageError(f"{flag}: cannot use {path}: {error.strerror}") from None


def _check_writable(path: Path, flag: str) -> None:
    if path.exists() and not path.is_dir():
        raise UsageError(f"{flag}: {path} is a file; give a folder")
    there = path
    while not there.exists() and there != there.parent:
        if there.is_symlink():
            raise UsageError(f"{flag}: {there} is a link that leads nowhere")
        there = there.parent
    if not there.is_dir():
        raise UsageError(f"{flag}: {there} is a file, so {path} cannot be made")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UsageError(f"{flag}: cannot write into {there}: {error.strerror}") from None


def _flush_all(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        _flush(path)
    folder.chmod(0o755)  # a scratch folder has 0o700, but a server runs as another user


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def collapse_home(values: Any) -> Any:
    """JSON values with `~` for the home folder wherever a text names it."""
    home = os.path.expanduser("~").rstrip("/")
    if not home.startswith("/"):  # unknown, or the root of the disk, which is nobody's
        return values
    return _mapped(values, re.compile(rf"(?<![\w.-]){re.escape(home)}(?![\w.-])"), "~")


def expand_home(values: Any) -> Any:
    """JSON values with the home folder of now for `~` at the beginning of a path."""
    home = os.path.expanduser("~").rstrip("/")
    if not home.startswith("/"):
        return values
    return _mapped(values, re.compile(r"\A~(?=/)"), home)


def _mapped(values: Any, pattern: re.Pattern[str], new: str) -> Any:
    if isinstance(values, str):
        return pattern.sub(lambda _: new, values)
    if isinstance(values, dict):
        return {name: _mapped(value, pattern, new) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_mapped(value, pattern, new) for value in values]
    return values
