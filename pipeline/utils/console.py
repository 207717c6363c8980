"""What a long command prints: a disk that is full costs lines, not the work."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any

from pipeline.utils.errors import plain

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Numbers of the errors of a full disk."""


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Lets `print` go on where stdout is a file that cannot be written.

    What it still holds is written once there is room again. That lines are missing is said on
    stderr, at the end. A pipe that nobody reads raises BrokenPipeError, as ever.
    """
    stream = sys.stdout
    if stream is None:  # closed by the caller
        yield
        return
    sys.stdout = console = _Lasting(stream)
    try:
        yield
    finally:
        if sys.stdout is console:
            console.flush()
            sys.stdout = None if console.full else stream  # it would fail again at the exit
        if console.lost and sys.stderr is not None:
            why = os.strerror(console.lost)
            said = f"warning: not all that was to be said could be written to stdout: {why}"
            with contextlib.suppress(OSError):
                print(said, file=sys.stderr)


class _Lasting:
    """A text stream, but for errors of a full disk."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.lost = 0
        """The number of the first error."""
        self.full = False
        """Whether the last write failed."""

    def write(self, text: str) -> int:
        with self._forgiven():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._forgiven():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _forgiven(self) -> Iterator[None]:
        try:
            yield
            self.full = False
        except OSError as error:
            if error.errno not in {*FULL, errno.EIO}:  # or it was unplugged
                raise
            self.full = True
            self.lost = self.lost or error.errno


def say(name: str, text: object) -> None:
    """One line: a key, and what there is to say."""
    print(f"{name:<10} {plain(str(text))}", flush=True)
