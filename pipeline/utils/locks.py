"""Locks between processes, which the kernel releases when their process ends."""

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from pipeline.utils.errors import UsageError

NAME = ".lock"
"""The file that is locked in a run directory."""
# A process writes its id into the file after it got the lock.
_TRIES = 50
_PAUSE = 0.01


def try_lock(path: Path) -> int | None:
    """Opens and locks a file or directory, and returns the descriptor.

    Closing the descriptor, or exiting, releases the lock. Returns None if another
    process holds the lock. Raises OSError, also if the disk does not support locks.
    """
    handle = _open(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return handle


@contextmanager
def hold(run: Path) -> Iterator[None]:
    """Locks a run directory during the block.

    Raises UsageError if another process has locked it; the message says which process
    and since when, and what to do.
    """
    path = run / NAME
    path.touch()
    handle = _acquire(path)
    try:
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        path.write_text(f"process {os.getpid()} since {now}\n")
        yield
    finally:
        with suppress(OSError):
            path.write_text("")
        os.close(handle)


def require_free(run: Path) -> None:
    """Raises UsageError if another process has locked the run directory; changes
    nothing.
    """
    if (run / NAME).exists():
        os.close(_acquire(run / NAME))


@contextmanager
def in_turn(path: Path, notice: str = "") -> Iterator[None]:
    """Waits until no other process is inside the same block for this file or directory.

    `path` is locked, not changed. On a disk without locks, nothing waits. `notice` is
    printed if this process has to wait.
    """
    handle = _open(path)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if notice:
                    print(notice)
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    # NFS grants an exclusive lock only on a file that is open for writing.
    return os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)


def _acquire(path: Path) -> int:
    for _ in range(_TRIES):
        try:
            handle = try_lock(path)
        except OSError as error:
            reason = f"{path.parent} cannot be locked: {error.strerror}"
            raise UsageError(f"{reason}; choose a directory on another disk") from None
        if handle is not None:
            return handle
        holder = _holder(path)
        if holder:
            break
        time.sleep(_PAUSE)
    raise UsageError(
        f"{path.parent} is in use by {holder or 'another process'}; wait until it has"
        " ended, or choose another directory"
    )


def _holder(path: Path) -> str | None:
    """The process named in a lock file.

    None if it runs on another machine or was killed.
    """
    text = path.read_text(errors="replace").strip()
    match = re.fullmatch(r"process (\d+) since .*", text)
    if match and Path("/proc", match[1]).exists():
        return text
    return None
