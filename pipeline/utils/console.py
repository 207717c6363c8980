"""What a long command prints: a disk that is full costs lines, not the work."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
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


def table(
    rows: Iterable[Sequence[object]], headers: Sequence[str] = (), right: Container[int] = ()
) -> str:
    """Rows as aligned plain text: one line each, neither wrapped nor truncated.

    Columns line up in a terminal also if a cell contains wide or combining characters.

    Args:
        rows: The cells of each row.
        headers: Names of the columns; without them there is no header line.
        right: Positions of the columns to align to the right, such as numbers.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = [list(row) for row in rows]
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(headers))
    for column in range(max(map(len, [headers, *lines]))):
        name = headers[column] if headers else ""
        drawn.add_column(name, justify="right" if column in right else "left", no_wrap=True)
    for row in lines:
        # `Text`: a file name such as a[b].png is not markup.
        drawn.add_row(*(Text(plain(str(cell)).replace("\n", " ")) for cell in row))
    output = io.StringIO()
    Console(file=output, width=10**6, color_system=None, force_terminal=False).print(drawn)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())
