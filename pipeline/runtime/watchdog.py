"""Ends a process in which a call hangs, and writes the stack traces of all threads.

A call may hang in a data loader, on a lost file system, or in a collective whose peer
is gone.
"""

import faulthandler
import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from pipeline.utils import files

EXIT_CODE = 6
_STDERR = 2  # the file descriptor: `sys.stderr` may be a notebook's, which has none
_WRITE_TIMEOUT = 5.0  # seconds; the disk may be what hangs


class Watchdog(keras.callbacks.Callback):
    """Limits the time of each call, but not the time between calls, such as saving and
    export.

    Used as a context manager; outside the block, or without a limit, nothing is
    watched. As the first callback of a run, it watches the calls but not the work of
    other callbacks after them. The limit in seconds includes tracing and compiling. The
    stacks are written to stderr and to `path`, if given.
    """

    def __init__(self, seconds: float | None, path: Path | None) -> None:
        super().__init__()
        self._seconds = seconds
        self._path = path
        self._call: object | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Watchdog":
        if self._seconds is not None:
            watch = functools.partial(self._watch, self._seconds)
            self._thread = threading.Thread(target=watch, name="watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        if self._thread is not None:
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
        """Watches the block as one call."""
        self._call = object()
        try:
            yield
        finally:
            self._call = None

    def _watch(self, seconds: float) -> None:
        # Counts its own waits, because a clock keeps running while a process is
        # suspended (Ctrl-Z).
        wait = min(1.0, seconds / 10)
        seen, waits = None, 0
        while not self._ended.wait(wait):
            if self._call is None or self._call is not seen:
                seen, waits = self._call, 0
                continue
            waits += 1
            if waits * wait >= seconds:
                self._end_process(seconds)

    def _end_process(self, seconds: float) -> None:
        where = f", also in {self._path}" if self._path else ""
        with open(os.memfd_create("stacks"), "w+", errors="replace") as stacks:
            faulthandler.dump_traceback(stacks, all_threads=True)
            stacks.seek(0)
            text = files.collapse_home(stacks.read())
        text = (
            f"error: a call took longer than {seconds:g} s; stacks of all"
            f" threads{where}:\n{text}"
        )
        os.write(_STDERR, text.encode())
        if self._path:
            write = functools.partial(files.write_text, self._path, text)
            writer = threading.Thread(target=write, daemon=True)
            writer.start()
            writer.join(_WRITE_TIMEOUT)
        # Without clean-up, which would wait for the call. All writes are atomic.
        os._exit(EXIT_CODE)
