"""Records the events of a run from inside it, and injects a fault at one of them.

`python -m tests.nightly.fault_injection.recorder ORDER MODULE ARGUMENTS`: ORDER is JSON from
`harness.Child`. Nothing in the package knows of this: Python's audit hooks report file operations
(`sys.addaudithook`), Keras's callback list reports calls and validations.
"""

import errno
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

from pipeline.utils.errors import run_command
from tests.nightly.fault_injection.harness import Fault

_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree")
_WRITES = os.O_WRONLY | os.O_RDWR


class Recorder:
    """Counts the events of this process and injects a fault at one of them."""

    def __init__(self, path: str, fault: Fault | None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._fault = fault
        self._counts: Counter[str] = Counter()
        self._place = "file"
        self._full = self._limited = False
        self._sizes = resource.getrlimit(resource.RLIMIT_FSIZE)

    def install(self) -> None:
        """Records from now on; nothing in this process can undo it."""
        import keras

        from pipeline.training.train_step import Step

        sys.addaudithook(self._audit)
        callbacks = keras.callbacks.CallbackList
        self._wrap(callbacks, "on_train_batch_end", "call")
        self._wrap(callbacks, "on_test_begin", "validation")
        self._wrap(Step, "train", "trace")

    def record(self, name: str, detail: str = "") -> None:
        """One more event of this name."""
        self._counts[name] += 1
        self._write(name, detail)
        fault = self._fault
        if fault and (name, self._counts[name]) == (fault.event, fault.count):
            self._write("fault", detail)
            self._inject(fault)

    def _write(self, name: str, detail: str = "") -> None:
        line = f"{name}\t{time.monotonic()}\t{detail}\n"
        os.write(self._file, line.encode(errors="replace"))

    def _inject(self, fault: Fault) -> None:
        if fault.action == "full":
            self._full = True
            return
        if fault.action in ("limit", "fill"):
            self._limited = True
            resource.setrlimit(resource.RLIMIT_FSIZE, (fault.bytes, self._sizes[1]))
            return
        number = getattr(signal, fault.action)
        if fault.again is not None:
            _send_later(fault.delay + fault.again, number)
        if fault.delay:
            _send_later(fault.delay, number)
        else:
            os.kill(os.getpid(), number)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Called before each operation; an error raised here is an error of the operation."""
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
        self._lift_limit(event, name)
        if self._place:
            self.record(self._place, f"{event} {name}")
        if self._full and self._place == "save" and _needs_space(event, arguments):
            self._full = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _lift_limit(self, event: str, name: str) -> None:
        saving = self._place == "save"
        begins = saving and event == "os.mkdir" and name.startswith(".")
        ends = not saving or event == "shutil.rmtree"
        if self._limited and (begins or (ends and self._fault and self._fault.action == "limit")):
            self._limited = False
            resource.setrlimit(resource.RLIMIT_FSIZE, self._sizes)

    def _wrap(self, owner: type, method: str, name: str) -> None:
        original = getattr(owner, method)

        def recorded(*arguments: Any, **options: Any) -> Any:
            if name == "call":
                self._write("computed")
            else:
                self.record(name)
            try:
                return original(*arguments, **options)
            finally:
                if name == "call":  # it has ended even if it was the last before a stop
                    self.record(name)

        setattr(owner, method, recorded)


def _place(path: str) -> str:
    """Which part of a run a file belongs to; "" for other files."""
    parts = os.path.relpath(path).split(os.sep)
    if parts[0] == os.pardir:
        return ""
    return "save" if "checkpoints" in parts else "export" if "saved_models" in parts else "file"


def _needs_space(event: str, arguments: tuple[Any, ...]) -> bool:
    return event in ("os.mkdir", "os.rename") or (event == "open" and bool(arguments[2] & _WRITES))


def _send_later(seconds: float, number: int) -> None:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


def _inject_nan(id: int) -> None:
    """Makes the pixels of one example NaN in every batch."""
    import tensorflow as tf

    task = importlib.import_module("pipeline.tasks.image_classification").ImageClassification
    original = task.prepare

    def prepare(self: Any, batch: dict[str, Any]) -> dict[str, Any]:
        batch = original(self, batch)
        if "id" not in batch:  # a request to the exported model
            return batch
        bad = tf.equal(batch["id"], id)[:, None, None, None]
        nan = tf.constant(float("nan"), batch["image"].dtype)
        return {**batch, "image": tf.where(bad, nan, batch["image"])}

    task.prepare = prepare


def _main() -> None:
    order = json.loads(sys.argv[1])
    sys.argv = sys.argv[2:]
    main = importlib.import_module(sys.argv[0]).main
    Recorder(order["events"], order["fault"] and Fault(**order["fault"])).install()
    if order["nan"] is not None:
        _inject_nan(order["nan"])
    run_command(main)


if __name__ == "__main__":
    _main()
