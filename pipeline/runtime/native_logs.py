"""What native code writes to stderr, past Python: lines that tell a user nothing are held back."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.runtime.gpu_info import none_here

# On every start of TensorFlow; everything else is passed on.
_START = ("All log messages before absl::InitializeLog", "oneDNN custom operations are on")
# Where a GPU is expected, these are real errors.
_NO_GPU = ("failed call to cuInit", "Cannot dlopen some GPU libraries", "Skipping registering GPU")

_TURN = threading.RLock()


def _renew() -> None:
    global _TURN
    _TURN = threading.RLock()  # the thread that held it is not in the child


os.register_at_fork(after_in_child=_renew)


@contextmanager
def of_start() -> Iterator[None]:
    """While TensorFlow starts, as a module of Python or as a library."""
    with held(_START + (_NO_GPU if none_here() else ())):
        yield


@contextmanager
def held(lines: tuple[str, ...]) -> Iterator[None]:
    """Holds back what C++ code writes to file descriptor 2, then passes on all but the noise.

    `TF_CPP_MIN_LOG_LEVEL` cannot do this: the oneDNN notice survives level 3, which hides true
    errors, and decoders write without asking it.

    Args:
        lines: Those that contain one of these texts are noise.
    """
    if sys.stderr is None:
        yield
        return
    # Two threads that exchange the descriptor at once would never give it back. And in memory: no
    # folder may be writable, as in a container.
    with _TURN, open(os.memfd_create("stderr"), "w+b") as file:
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            for line in file.read().decode(errors="replace").splitlines():
                if line.strip() and not any(known in line for known in lines):
                    print(line, file=sys.stderr)
