"""Paths that TensorFlow would take for patterns of file names."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PATTERN = frozenset("*?[]\\")
"""Characters that stand for others in such patterns."""


@contextlib.contextmanager
def literal(directory: Path) -> Iterator[str]:
    """A path by which TensorFlow restores the variables in this directory.

    The operation that restores variables, also of a SavedModel, first matches the path
    of their index as a pattern (TensorFlow 2.21: `RestoreV2`, which calls
    `Env::GetMatchingPaths`). With `[2024]` or a backslash in it, the path does not
    match itself. The directory is then read through the kernel's link to an open file,
    valid until the end of the context.
    """
    if not PATTERN.intersection(str(directory)) or not directory.is_dir():
        yield str(directory)
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
