"""Filters the lines that native code writes to stderr."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from pipeline.runtime.gpu_info import none_here

# Printed on every start of TensorFlow.
_START = (
    "All log messages before absl::InitializeLog",
    "oneDNN custom operations are on",
)
# Printed if there is no GPU; otherwise these are real errors.
_NO_GPU = (
    "failed call to cuInit",
    "Cannot dlopen some GPU libraries",
    "Skipping registering GPU",
)

_TURN = threading.RLock()


class Lines:
    """The lines of native code; at the end, `dropped` has those not printed."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.dropped: list[str] = []
        self._descriptor = descriptor

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return 0 if self._descriptor is None else os.fstat(self._descriptor).st_size


def filter_startup() -> AbstractContextManager[Lines]:
    """Filters stderr while TensorFlow starts, as a Python module or as a library."""
    return filter_stderr(_START + (_NO_GPU if none_here() else ()))


@contextmanager
def filter_stderr(parts: tuple[str, ...]) -> Iterator[Lines]:
    """Drops lines with these parts from what C++ code writes to file descriptor 2.

    `TF_CPP_MIN_LOG_LEVEL` is not enough: level 3 hides real errors but not the oneDNN
    notice, and decoders ignore it.
    """
    if sys.stderr is None:
        yield Lines()
        return
    # One thread at a time replaces the descriptor. The file is in memory, as a
    # container may have no writable directory.
    with _TURN, open(os.memfd_create("stderr"), "w+b") as file:
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        written = Lines(file.fileno())
        try:
            yield written
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            for line in file.read().decode(errors="replace").splitlines():
                if any(part in line for part in parts):
                    written.dropped.append(line)
                elif line.strip():
                    print(line, file=sys.stderr)
