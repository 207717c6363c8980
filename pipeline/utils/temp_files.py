"""Unfinished files: hidden, locked by their process, and removed if it was killed."""

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
    """A new directory in `parent`, hidden so that no server loads it."""
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
    """Deletes a file or directory, after renaming it so that it disappears at once."""
    hidden = path
    with contextlib.suppress(OSError):
        hidden = path.rename(path.with_name(_name()))
    _delete(hidden)
    release(path)


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A temporary directory, removed at the end."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def sweep(parent: Path) -> None:
    """Deletes the unfinished files of killed processes in a directory.

    The kernel releases the locks of a process that ends, so whatever can be locked is
    abandoned. On a disk without locks, nothing is deleted.
    """
    for path in parent.glob(".unpublished-*"):
        if not is_ours(path.name):
            continue
        with contextlib.suppress(OSError):
            handle = locks.try_lock(path)
            if handle is not None:
                _delete(path)
                os.close(handle)


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


def _delete(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):  # a file, or a link
        path.unlink()
