"""A run inside a child of the drill: its moments are counted, and at one of them it is struck.

Moments are seen from outside the code under trial: Python's audit hooks tell of operations on
files (`sys.addaudithook`), Keras's own list of callbacks of calls and validations.
"""

import errno
import importlib
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter
from typing import Any

import keras
import tensorflow as tf

from pipeline.runtime import native_logs
from pipeline.training.train_step import Step
from pipeline.utils.errors import run_command
from tests.nightly.fault_injection.trials import Strike

_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree")
_WRITES = os.O_WRONLY | os.O_RDWR


def enter(
    module: str,
    words: list[str],
    folder: str,
    strike: Strike | None,
    poison: int | None,
    said: int,
    told: int,
) -> None:
    """Runs a command, as `python -m module words` in `folder`; ends with its exit code.

    Args:
        strike: What is to happen.
        poison: Id of an example whose pixels become NaN.
        said: Descriptor that takes stdout and stderr.
        told: Descriptor that takes the moments, a line each.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in (1, 2):
        os.dup2(said, number)
    sys.stdout, sys.stderr = (open(n, "w", buffering=1, closefd=False) for n in (1, 2))  # noqa: SIM115
    os.chdir(folder)
    os.environ["TMPDIR"] = os.path.dirname(folder)  # removed with the drill
    with native_logs.of_start():
        tf.config.list_physical_devices("GPU")  # otherwise the run would tell of a missing one
    sys.argv = [module, *words]
    main = importlib.import_module(module).main
    if module in ("pipeline.fit", "pipeline.export.__main__"):
        moments = Moments(told, strike)
        moments.watch()
        if poison is not None:
            _poison(poison)
        moments.pass_("start")
    run_command(main)


class Moments:
    """Counts what happens in this process, tells of it, and strikes at the moment chosen."""

    def __init__(self, told: int, strike: Strike | None) -> None:
        self._told = told
        self._strike = strike
        self._counts: Counter[str] = Counter()
        self._place = "file"
        self._full = self._limited = False
        self._sizes = resource.getrlimit(resource.RLIMIT_FSIZE)

    def watch(self) -> None:
        """Listens from now on; nothing of this process can undo it."""
        sys.addaudithook(self._heard)
        listeners = keras.callbacks.CallbackList
        self._tell(listeners, "on_train_batch_end", "call")
        self._tell(listeners, "on_test_begin", "validation")
        self._tell(Step, "train", "trace")

    def pass_(self, name: str, what: str = "") -> None:
        """One more moment of this name."""
        self._counts[name] += 1
        self._note(name, what)
        strike = self._strike
        if strike and (name, self._counts[name]) == (strike.moment, strike.count):
            self._note("strike", what)
            self._carry_out(strike)

    def _note(self, name: str, what: str = "") -> None:
        os.write(self._told, f"{name}\t{time.monotonic()}\t{what}\n".encode(errors="replace"))

    def _carry_out(self, strike: Strike) -> None:
        if strike.action == "full":
            self._full = True
            return
        if strike.action in ("limit", "fill"):
            self._limited = True
            resource.setrlimit(resource.RLIMIT_FSIZE, (strike.bytes, self._sizes[1]))
            return
        number, own = getattr(signal, strike.action), os.getpid()
        if strike.again is not None:
            _later(strike.delay + strike.again, number)
        if strike.delay:
            _later(strike.delay, number)
        else:
            os.kill(own, number)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An operation that is about to happen; what is raised here, it raises."""
        if event not in _CHANGES and event != "open":
            return
        if event == "open" and not _writes_or_syncs(arguments):
            return
        path = arguments[0]
        if isinstance(path, bytes | str | os.PathLike):
            path = os.path.join(os.getcwd(), os.fsdecode(path))
            inside = event == "os.remove" and arguments[1] not in (-1, None)
            self._place = self._place if inside else _place(path)
        name = os.path.basename(str(path))
        self._lift(event, name)
        if self._place:
            self.pass_(self._place, f"{event} {name}")
        if self._full and self._place == "save" and _takes_room(event, arguments):
            self._full = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _lift(self, event: str, name: str) -> None:
        """Gives the disk room again: when the next save begins, or this one is over."""
        saving = self._place == "save"
        begins = saving and event == "os.mkdir" and name.startswith(".")
        over = not saving or event == "shutil.rmtree"
        if self._limited and (begins or (over and self._strike.action == "limit")):
            self._limited = False
            resource.setrlimit(resource.RLIMIT_FSIZE, self._sizes)

    def _tell(self, owner: type, method: str, name: str) -> None:
        original = getattr(owner, method)

        def told(*arguments: Any, **options: Any) -> Any:
            if name == "call":
                self._note("computed")
            else:
                self.pass_(name)
            try:
                return original(*arguments, **options)
            finally:
                if name == "call":  # over, even if it was the last before a stop
                    self.pass_(name)

        setattr(owner, method, told)


def _place(path: str) -> str:
    """Which part of a run a file belongs to; "" for those of others."""
    parts = os.path.relpath(path).split(os.sep)
    if parts[0] == os.pardir:
        return ""
    return "save" if "checkpoints" in parts else "export" if "saved_models" in parts else "file"


def _writes_or_syncs(arguments: tuple[Any, ...]) -> bool:
    """Of an `open`: for writing, or by `os.open` (no mode), which is how a folder is synced."""
    _, mode, flags = arguments
    return mode is None or bool(flags & _WRITES)


def _takes_room(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a full disk refuses it."""
    return event in ("os.mkdir", "os.rename") or (event == "open" and bool(arguments[2] & _WRITES))


def _later(seconds: float, number: int) -> None:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


def _poison(id: int) -> None:
    """Makes the pixels of one example NaN, wherever it comes."""
    kind = importlib.import_module("pipeline.tasks.image_classification").ImageClassification
    original = kind.prepare

    def prepare(self: Any, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        batch = original(self, batch)
        if "id" not in batch:  # a request to the exported model
            return batch
        bad = tf.equal(batch["id"], id)[:, None, None, None]
        nan = tf.constant(float("nan"), batch["image"].dtype)
        return {**batch, "image": tf.where(bad, nan, batch["image"])}

    kind.prepare = prepare
