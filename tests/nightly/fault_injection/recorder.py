"""Records the events of a run from inside it, and injects a fault at one of them.

`python -m tests.nightly.fault_injection.recorder ORDER MODULE ARGUMENTS`: ORDER is JSON
from `harness.run`. Nothing in the package knows of this: Python's audit hooks report
file operations (`sys.addaudithook`), Keras's callback list reports calls.
"""

import importlib
import json
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter
from typing import Any

from pipeline.utils import progress_bar
from pipeline.utils.errors import run_command
from tests.nightly.fault_injection.harness import Fault

_CHANGES = (
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "shutil.rmtree",
)
_WRITES = os.O_WRONLY | os.O_RDWR


class Recorder:
    """Counts the events of this process and injects a fault at one of them."""

    def __init__(self, path: str, fault: Fault | None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._fault = fault
        self._counts: Counter[str] = Counter()
        self._place = ""
        self._sizes = resource.getrlimit(resource.RLIMIT_FSIZE)

    def install(self) -> None:
        """Records from now on; nothing in this process can undo it."""
        from keras.callbacks import CallbackList

        original = CallbackList.on_train_batch_end

        def recorded(*arguments: Any, **options: Any) -> None:
            self._write("computed")
            try:
                original(*arguments, **options)
            finally:  # it has ended even if it was the last before a stop
                self.record("call")

        CallbackList.on_train_batch_end = recorded
        self._record_before(CallbackList, "on_test_batch_end", "validation")
        self._record_before(progress_bar, "begin", "stage")
        sys.addaudithook(self._audit)
        self.record("start")

    def _record_before(self, owner: Any, name: str, event: str) -> None:
        """Records each call of a function before it; of a stage, its name."""
        original = getattr(owner, name)

        def recorded(*arguments: Any, **options: Any) -> None:
            self.record(event, str(arguments[0]) if event == "stage" else "")
            original(*arguments, **options)

        setattr(owner, name, recorded)

    def record(self, name: str, detail: str = "") -> None:
        """One more event of this name."""
        self._counts[name] += 1
        self._write(name, detail)
        fault = self._fault
        if not fault or (name, self._counts[name]) != (fault.event, fault.count):
            return
        self._write("fault", detail)
        if fault.action == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (fault.bytes, self._sizes[1]))
        elif fault.delay:
            number = getattr(signal, fault.action)
            timer = threading.Timer(fault.delay, os.kill, (os.getpid(), number))
            timer.daemon = True
            timer.start()
        else:
            os.kill(os.getpid(), getattr(signal, fault.action))

    def _write(self, name: str, detail: str = "") -> None:
        line = f"{name}\t{time.monotonic()}\t{detail}\n"
        os.write(self._file, line.encode(errors="replace"))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Called before each operation."""
        if event == "socket.bind":
            self.record("meet")
        if event not in _CHANGES and event != "open":
            return
        # `os.open` has no mode: this is how a directory is synced.
        if event == "open" and arguments[1] is not None and not arguments[2] & _WRITES:
            return
        path = arguments[0]
        if isinstance(path, bytes | str | os.PathLike):
            path = os.path.join(os.getcwd(), os.fsdecode(path))
            relative = event == "os.remove" and arguments[1] not in (-1, None)
            self._place = self._place if relative else _place(path)
        name = os.path.basename(str(path))
        begins = event == "os.mkdir" and name.startswith(".")
        if self._place != "save" or begins or event == "shutil.rmtree":
            resource.setrlimit(resource.RLIMIT_FSIZE, self._sizes)
        if self._place:
            self.record(self._place, f"{event} {name}")


def _place(path: str) -> str:
    """Which part of a run a file belongs to; "" for other files."""
    parts = os.path.relpath(path).split(os.sep)
    return (
        "save"
        if "checkpoints" in parts
        else "export"
        if "saved_models" in parts
        else ""
    )


def _main() -> None:
    path, fault = json.loads(sys.argv[1])
    sys.argv = sys.argv[2:]
    main = importlib.import_module(sys.argv[0]).main
    Recorder(path, fault and Fault(*fault)).install()
    run_command(main)


if __name__ == "__main__":
    _main()
