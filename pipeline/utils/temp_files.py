"""Unfinished files: hidden, locked by their process, and removed later if it was killed."""

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.utils import locks

_NAME = re.compile(r"\.unpublished-[0-9a-f]{32}")
_locks: dict[Path, int] = {}


def folder(parent: Path) -> Path:
    """A new directory in `parent`, hidden, so that TensorFlow Serving does not load it."""
    parent.mkdir(parents=True, exist_ok=True)
    return _make(parent, lambda path: path.mkdir(mode=0o700))


def file(parent: Path) -> Path:
    """A new empty file in `parent`, hidden as well."""
    return _make(parent, Path.touch)


def release(path: Path) -> None:
    """Releases the lock on a file or directory that was published or removed."""
    handle = _locks.pop(path, None)
    if handle is not None:
        os.close(handle)


def remove(path: Path) -> None:
    """Deletes a file or directory; it is renamed first, so that it disappears at once."""
    hidden = path if is_ours(path.name) else path.with_name(_name())
    if hidden != path:
        try:
            path.rename(hidden)
        except OSError:
            hidden = path
    _delete(hidden)
    release(path)


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A temporary directory, removed at the end; those of killed processes are removed as well."""
    parent = Path(tempfile.gettempdir())
    sweep(parent)
    path = folder(parent)
    try:
        yield path
    finally:
        remove(path)


def sweep(parent: Path) -> list[Path]:
    """Deletes what killed processes left unfinished in a directory, and returns the paths.

    The kernel releases the locks of a process that ends, so whatever can be locked is abandoned. On
    a disk without locks, nothing is deleted.
    """
    found = []
    with contextlib.suppress(OSError):
        found = [path for path in parent.iterdir() if is_ours(path.name)]
    return [path for path in found if _delete_abandoned(path)]


def is_ours(name: str) -> bool:
    """Whether this is the name of an unfinished file or directory."""
    return _NAME.fullmatch(name) is not None


def _name() -> str:
    return f".unpublished-{secrets.token_hex(16)}"


def _make(parent: Path, make: Callable[[Path], None]) -> Path:
    while True:
        path = parent / _name()
        make(path)
        try:
            handle = locks.try_lock(path)
        except FileNotFoundError:  # another process swept it before it was locked
            continue
        except OSError:  # no locks on this disk, and so no sweeping
            return path
        if handle is not None and path.exists():
            _locks[path] = handle
            return path
        if handle is not None:
            os.close(handle)


def _delete_abandoned(path: Path) -> bool:
    try:
        handle = locks.try_lock(path)
    except OSError:
        return False
    if handle is None:
        return False
    _delete(path)
    os.close(handle)
    return not path.exists()


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
