"""Ends a process in which a call does not come back, after the stacks of all threads were written.

A loader that waits for ever, a file system that has gone, a collective whose other side is lost:
nothing else in the process can tell such a wait from work.
"""

import faulthandler
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from pipeline.utils import files

EXIT_CODE = 6
_STDERR = 2  # the file descriptor: `sys.stderr` may be a notebook's, which has none
_LAST_WORDS = 5.0  # seconds for `hang.txt`, whose disk may be what hangs


class Watchdog:
    """Watches call after call, and nothing between them: saving and export take their time.

    Used as a context; outside of it, and without a limit, nothing is watched.

    Args:
        seconds: That a call may take, tracing and compiling included; None: any.
        path: Of the file that gets the stacks, beside stderr; None: there is none.
    """

    def __init__(self, seconds: float | None, path: Path | None) -> None:
        self._seconds = seconds
        self._path = path
        self._call: object | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        if self._seconds is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        if self._seconds is not None:
            self._thread.join()

    def begin(self) -> None:
        """A call begins."""
        self._call = object()

    def end(self) -> None:
        """It has come back."""
        self._call = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """From here to the end of the block it is one call."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def _watch(self) -> None:
        # Its own waits are counted, not the clock: a process that was stopped for an hour (Ctrl-Z,
        # a suspended virtual machine) has not hung for one.
        wait = min(1.0, self._seconds / 10)
        seen, waits = None, 0
        while not self._ended.wait(wait):
            if self._call is None or self._call is not seen:
                seen, waits = self._call, 0
                continue
            waits += 1
            if waits * wait >= self._seconds:
                self._bark()

    def _bark(self) -> None:
        line = (
            f"error: hung: a call has not come back in {self._seconds:g} s; stacks of all threads"
        )
        where = f", and lie in {self._path}" if self._path else ""
        os.write(_STDERR, f"{line} follow{where}\n".encode())
        faulthandler.dump_traceback(_STDERR, all_threads=True)
        if self._path:
            writer = threading.Thread(target=self._write, args=(line, self._path), daemon=True)
            writer.start()
            writer.join(_LAST_WORDS)
        # No clean-up: it would wait for what hangs. All that we write is whole or not there.
        os._exit(EXIT_CODE)

    def _write(self, line: str, path: Path) -> None:
        with tempfile.TemporaryFile("w+", errors="replace") as stacks:
            faulthandler.dump_traceback(stacks, all_threads=True)
            stacks.seek(0)
            told = files.collapse_home(stacks.read())  # an environment in the home folder names it
        with path.open("w", encoding="utf-8") as file:
            file.write(f"{line}:\n{told}")
            file.flush()
            os.fsync(file.fileno())


class Watched(keras.callbacks.Callback):
    """Tells a watchdog of each call of training and validation.

    Stands before all others: what they do after a call is then not watched.
    """

    def __init__(self, watchdog: Watchdog) -> None:
        super().__init__()
        self._watchdog = watchdog

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._watchdog.begin()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._watchdog.end()

    def on_test_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._watchdog.begin()

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._watchdog.end()
