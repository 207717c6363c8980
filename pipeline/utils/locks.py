"""One process at a time: a file that the kernel frees, and that says who holds it."""

import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from pipeline.utils import safe_io
from pipeline.utils.errors import UsageError

# A holder writes who it is after it got the lock; until then the file tells of nobody.
_TRIES, _PAUSE = 50, 0.01
_OURS = b'{"pid"'


@contextmanager
def held(path: Path, what: str, remedy: str) -> Iterator[None]:
    """Holds the file at `path`, made if needed, while inside; then it tells of nobody again.

    The kernel lets go of it when this process ends, however it ends: no file of a dead process
    stands in the way.

    Args:
        path: The file.
        what: The thing that is locked, for the message.
        remedy: What to do if another holds it.

    Raises:
        UsageError: Another process holds it; says which, where and since when. Or it is no file of
            ours, and is left as it is.
    """
    with _opened(path, os.O_RDWR | os.O_CREAT) as file:
        _take(file, fcntl.LOCK_EX, path, what, remedy)
        with _folder_of(path, what, remedy):
            _tell(file, {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()})
            try:
                yield
            finally:
                _tell(file, None)


def require_free(path: Path, what: str, remedy: str) -> None:
    """Raises UsageError if another process holds the file; changes nothing."""
    if not os.path.lexists(path):
        return
    with _opened(path, os.O_RDONLY) as file:
        _take(file, fcntl.LOCK_SH, path, what, remedy)


@contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Waits until no other process is inside for this folder; for what takes a moment.

    Nothing is written, and the kernel ends the turn of a process that dies. On a disk without locks
    nobody waits.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _opened(path: Path, how: int) -> IO[str]:
    """Neither a link, which may lead to anything, nor a pipe, which may wait for ever."""
    flags = how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
        raise UsageError(f"{path} is no lock of ours; remove it, or give another folder") from None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        told = os.pread(handle, len(_OURS), 0)
        if told == _OURS[: len(told)]:  # whole, torn, or of nobody
            return os.fdopen(handle, "r" if how == os.O_RDONLY else "r+", encoding="utf-8")
    os.close(handle)
    raise UsageError(f"{path} is no lock of ours; remove it, or give another folder")


@contextmanager
def _folder_of(path: Path, what: str, remedy: str) -> Iterator[None]:
    """The folder's own lock as well: the file of a lock can be deleted while it is held."""
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder, _ = _holder(path)
            raise UsageError(f"{what} is in use by {holder}; {remedy}") from None
        except OSError:  # NFS locks no folders; the file remains
            pass
        yield
    finally:
        os.close(handle)


def _take(file: IO[str], kind: int, path: Path, what: str, remedy: str) -> None:
    for _ in range(_TRIES):
        try:
            return fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            holder, lives = _holder(path)
            if lives:
                break
            time.sleep(_PAUSE)  # it has not said yet who it is, or only looks
        except OSError as error:
            raise UsageError(
                f"{what} cannot be locked: {error.strerror}; give one on another disk"
            ) from None
    raise UsageError(f"{what} is in use by {holder}; {remedy}")


def _holder(path: Path) -> tuple[str, bool]:
    """Who holds a lock, and whether that is certain."""
    try:
        told = safe_io.read_json(path)
        pid, host, since = int(told["pid"]), str(told["host"]), str(told["since"])
    except (OSError, ValueError, OverflowError, KeyError, TypeError):
        return "another process", False
    lives = host != socket.gethostname() or os.path.exists(f"/proc/{pid}")
    return f"process {pid} on {host} since {since}", lives


def _tell(file: IO[str], holder: dict[str, object] | None) -> None:
    file.seek(0)
    file.truncate()
    if holder is not None:
        file.write(json.dumps(holder) + "\n")
    file.flush()


def _now() -> str:
    return datetime.now().astimezone().isoformat(" ", "seconds")
