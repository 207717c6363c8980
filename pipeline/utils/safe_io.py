"""Reading text and JSON that anybody may have written: what kind of file and how long comes first.

Sizes are limits for what this package writes itself, with room to spare. Nothing here runs what it
reads: no pickle, no YAML, no code.
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

MOST_JSON = 2**26
"""Bytes of a JSON file: a history of a million epochs is shorter."""
MOST_TEXT = 2**30
"""Bytes of lists with a line for each example."""
_DEEPEST = 64  # lists and objects within each other; Python's own functions stop at some 1,000


def read_bytes(path: Path, most: int) -> bytes:
    """What a file holds.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is a device or a pipe, which may never end, or longer than `most` bytes.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"it is longer than {most:,} bytes")
        return file.read(size)  # what has been added since is of a later state


def opened(path: Path) -> BinaryIO:
    """A file for reading; raises ValueError for a device or a pipe, and OSError."""
    # Opening a pipe without a writer would wait for one.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise ValueError("it is no regular file")
    return os.fdopen(handle, "rb")


def read_text(path: Path, most: int = MOST_TEXT) -> str:
    """Text in UTF-8; raises what `read_bytes` does, and ValueError for what is no UTF-8."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None


def read_json(path: Path, most: int = MOST_JSON) -> Any:
    """The values of a JSON file; raises what `read_text` does, and what `parse_json` does."""
    return parse_json(read_text(path, most))


def parse_json(text: str) -> Any:
    """The values of JSON; raises ValueError for what is none, or is nested too deeply."""
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    layer = [values]
    for _ in range(_DEEPEST):
        layer = [inner for outer in layer for inner in _inside(outer)]
        if not layer:
            return values
    raise ValueError("it is nested too deeply")


def _inside(value: Any) -> list[Any]:
    """The lists and objects that stand in a list or an object."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in parts if isinstance(part, dict | list)]
