"""What is still being made: hidden, marked, held by its maker, swept away once that is dead."""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = ".unpublished-"
_MARK = re.compile(rf"{re.escape(_PREFIX)}([0-9a-f]{{16}})([0-9a-f]{{16}})")
_held: dict[Path, int] = {}


def folder(parent: Path) -> Path:
    """A new folder in `parent`, hidden and no number, so that neither we nor TF Serving read it."""
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        path = parent / _name()
        path.mkdir(mode=0o700)
        if _hold(path):
            return path


def file(parent: Path) -> Path:
    """A new empty file in `parent`, likewise."""
    while True:
        path = parent / _name()
        path.touch(exist_ok=False)
        if _hold(path):
            return path


def release(path: Path) -> None:
    """Ends the hold on something that was published, or that is to be removed."""
    handle = _held.pop(path, None)
    if handle is not None:
        os.close(handle)


def remove(path: Path) -> None:
    """Deletes a folder or file of ours, which is gone at once for all who look for its name."""
    marked = path
    if not is_ours(path.name):
        marked = path.with_name(_name())
        try:
            path.rename(marked)
        except OSError:
            marked = path
    _delete(marked)
    release(path)


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A folder beside all temporary files that is gone at the end; those of the dead go now."""
    parent = Path(tempfile.gettempdir())
    sweep(parent)
    path = folder(parent)
    try:
        yield path
    finally:
        remove(path)


def sweep(parent: Path) -> list[Path]:
    """Deletes what dead processes have left unfinished in a folder, and returns it.

    Only what bears our mark, and whose maker lives no more: the kernel frees a hold when a process
    ends, however it ends. Where a disk knows no such holds nothing is deleted.
    """
    try:
        marked = [path for path in parent.iterdir() if is_ours(path.name)]
    except OSError:
        return []
    return [path for path in marked if _swept(path)]


def is_ours(name: str) -> bool:
    """Whether a name bears our mark: half of its digits are a digest of the other half.

    A name that only looks like ours passes by chance once in 2**64.
    """
    found = _MARK.fullmatch(name)
    return found is not None and found[2] == _digest(found[1])


def _name() -> str:
    digits = secrets.token_hex(8)
    return f"{_PREFIX}{digits}{_digest(digits)}"


def _digest(digits: str) -> str:
    return hashlib.sha256(f"unfinished work of pipeline {digits}".encode()).hexdigest()[:16]


def _hold(path: Path) -> bool:
    """Says that the maker lives; False if a sweep has come between."""
    handle = _locked(path)
    if handle is None:
        return False
    _held[path] = handle
    return True


def _locked(path: Path, required: bool = False) -> int | None:
    """The open, locked file or folder; None if another has it or it is gone.

    Unless it is `required`, a disk without locks will do.
    """
    try:  # a pipe would wait for a writer, a link could lead anywhere
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if required or isinstance(error, BlockingIOError):
            os.close(handle)
            return None
    if not _is_still(path, handle):
        os.close(handle)
        return None
    return handle


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except OSError:
        return False


def _swept(path: Path) -> bool:
    handle = _locked(path, required=True)
    if handle is None:
        return False
    try:
        mode = os.fstat(handle).st_mode
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            return False
        _delete(path)
        return not os.path.lexists(path)
    finally:
        os.close(handle)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
