"""Ends a process in which a call hangs, and writes the stack traces of all threads.

A call may hang in a data loader, on a lost file system, or in a collective whose peer
is gone.
"""

import faulthandler
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

EXIT_CODE = 6
_STDERR = 2  # the file descriptor: `sys.stderr` may be a notebook's, which has none
_WRITE_TIMEOUT = 5.0  # seconds; the disk may be what hangs


class Watchdog(keras.callbacks.Callback):
    """Limits the time of a call, but not the time between calls.

    A context manager; outside the block, or without a limit, it does nothing. As the
    first callback of a run, it watches the calls but not the other callbacks after
    them, nor saving and export. The limit in seconds includes tracing and compiling.
    The stacks are written to stderr and to `path`, if it is not None.
    """

    def __init__(self, seconds: float | None, path: Path | None) -> None:
        super().__init__()
        self._seconds = math.inf if seconds is None else seconds
        self._path = path
        self._call: object | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watchdog":
        if self._seconds < math.inf:
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._call = object()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._call = None

    on_test_batch_begin = on_train_batch_begin
    on_test_batch_end = on_train_batch_end

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the block like a call."""
        self._call = object()
        try:
            yield
        finally:
            self._call = None

    def _watch(self) -> None:
        # Counts the waits, because a clock keeps running while a process is suspended
        # (Ctrl-Z).
        wait = min(1.0, self._seconds / 10)
        call = None
        waited = 0.0
        while not self._ended.wait(wait):
            if self._call is not call:
                call = self._call
                waited = 0.0
            elif call is not None:
                waited += wait
                if waited >= self._seconds:
                    self._end_process()

    def _end_process(self) -> None:
        """Ends the process without clean-up, which would wait for the call."""
        where = f", also in {self._path}" if self._path else ""
        message = (
            f"error: a call took longer than {self._seconds:g} s; stacks of all"
            f" threads{where}:\n"
        )
        os.write(_STDERR, message.encode())
        faulthandler.dump_traceback(_STDERR)
        if self._path:
            arguments = (self._path, message)
            writer = threading.Thread(target=_write, args=arguments, daemon=True)
            writer.start()
            writer.join(_WRITE_TIMEOUT)
        os._exit(EXIT_CODE)


def _write(path: Path, message: str) -> None:
    with path.open("w") as file:
        print(message, file=file, end="", flush=True)
        faulthandler.dump_traceback(file)
