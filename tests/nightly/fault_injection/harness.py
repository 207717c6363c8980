"""Runs in forked children of one warm process, counted from inside and struck at a chosen moment.

The fork server is that of the standard library: it imports TensorFlow, runs nothing with it, and
forks. A restart then takes as long as building a model does, not 10 s of imports more. In a child,
moments are seen from outside the code under trial: Python's audit hooks tell of operations on files
(`sys.addaudithook`), Keras's own list of callbacks of calls and validations.
"""

import dataclasses
import errno
import functools
import importlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

from pipeline.runtime import native_logs
from pipeline.utils.errors import run_command

_REPOSITORY = Path(__file__).parents[3]
_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree")
_WRITES = os.O_WRONLY | os.O_RDWR
# A run under trial takes seconds; one that takes this long hangs.
PATIENCE = 300.0
# Held while a process is begun or asked for its end: where two threads ask, both read the one pipe
# that says it, and the second finds it empty and takes 255 for the exit code.
_ASKING = threading.Lock()


class Lost(Exception):
    """A trial that a run has not survived; the message says how."""


@dataclasses.dataclass(frozen=True)
class Strike:
    """What strikes a run from inside, and at which moment; see `Moments`."""

    action: str
    """A signal (`SIGKILL`, `SIGTERM`, `SIGINT`), `full` (the disk, for the next operation that
    takes room), `limit` (the size of files, until this save is over) or `fill` (until the next
    begins)."""
    moment: str
    """`save`, `export`, `file` (operations on files), `trace`, `validation`, `call` or `start`."""
    count: int = 1
    """The how manieth moment of this name it is."""
    delay: float = 0.0
    """Seconds after the moment."""
    again: float | None = None
    """Seconds after which the signal comes a second time; None: it does not."""
    bytes: int = 0
    """Size of the largest file, for `limit` and `fill`."""


@dataclasses.dataclass(frozen=True)
class Moment:
    """Something that has happened inside a run."""

    name: str
    seconds: float
    """Of the monotonic clock that all processes share."""
    what: str


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a run ended."""

    code: int
    """As a shell would give it: 128 and the number of a signal that killed it."""
    said: str
    """Its stdout and stderr, as they came."""
    moments: tuple[Moment, ...]
    end: float
    """When, by the monotonic clock."""

    def count(self, name: str) -> int:
        """How many moments of this name there were."""
        return sum(moment.name == name for moment in self.moments)

    @property
    def struck(self) -> Moment | None:
        """The moment of the strike; None if it never came."""
        return next((m for m in self.moments if m.name == "strike"), None)


class Child:
    """A command in a process of its own; killed at the end of the `with` if it still runs.

    Args:
        module: A module with a `main(arguments)`, such as `pipeline.fit`.
        words: The arguments.
        folder: Where it works.
        strike: What is to happen to it.
        poison: Id of an example whose pixels become NaN; None: no example's.
    """

    def __init__(
        self,
        module: str,
        words: list[str],
        folder: Path,
        strike: Strike | None = None,
        poison: int | None = None,
    ) -> None:
        context = _warm()
        self._said, said = context.Pipe(duplex=False)
        self._told, told = context.Pipe(duplex=False)
        order = (module, [str(word) for word in words], str(folder), strike, poison, said, told)
        self._process = context.Process(target=_enter, args=order)
        with _ASKING:
            self._process.start()
        said.close()
        told.close()
        self._open: dict[Connection, bytearray] = {self._said: bytearray(), self._told: bytearray()}
        self._end = 0.0
        self.start = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _ASKING:
            if self._process.exitcode is None:
                self._process.kill()
            self._process.join()
        for connection in self._open:
            connection.close()

    def runs_for(self, seconds: float) -> bool:
        """Whether it still runs after so many seconds; what it says is read meanwhile."""
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            ready = wait([*self._listening, self._process.sentinel], max(0.0, left))
            for connection in self._listening:
                if connection in ready:
                    self._read(connection)
            if self._process.sentinel in ready:
                self._end = self._end or time.monotonic()
                with _ASKING:
                    self._process.join()
                while self._listening and wait(self._listening, 0):
                    for connection in list(self._listening):
                        self._read(connection)
                return False
            if left <= 0:
                return True

    def signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        with _ASKING:
            if self._process.exitcode is None:
                os.kill(self._process.pid, number)

    def ended(self) -> Ended:
        """Waits for the end. A run that hangs is killed, and its code is that of SIGKILL."""
        if self.runs_for(PATIENCE):
            self.signal(signal.SIGKILL)
            self.runs_for(PATIENCE)
        with _ASKING:
            code = self._process.exitcode
        moments = []
        for line in self._open[self._told].decode(errors="replace").splitlines():
            name, seconds, what = line.split("\t", 2)
            moments.append(Moment(name, float(seconds), what))
        said = self._open[self._said].decode(errors="replace")
        return Ended(128 - code if code < 0 else code, said, tuple(moments), self._end)

    @property
    def _listening(self) -> list[Connection]:
        return [connection for connection in self._open if not connection.closed]

    def _read(self, connection: Connection) -> None:
        text = os.read(connection.fileno(), 65536)
        self._open[connection] += text
        if not text:
            connection.close()


def run(module: str, words: list[str], folder: Path, strike: Strike | None = None) -> Ended:
    """A command from its start to its end."""
    with Child(module, words, folder, strike) as child:
        return child.ended()


def kill_all() -> None:
    """Ends what runs in any thread by SIGKILL."""
    with _ASKING:
        for process in multiprocessing.active_children():
            process.kill()


@functools.cache
def _warm() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.preload"])
    # The server takes its path from there, and says nothing of a module that it does not find.
    path = os.pathsep.join(filter(None, (str(_REPOSITORY), os.environ.get("PYTHONPATH"))))
    with mock.patch.dict(os.environ, PYTHONPATH=path):
        forkserver.ensure_running()
    return context


def _enter(
    module: str,
    words: list[str],
    folder: str,
    strike: Strike | None,
    poison: int | None,
    said: Connection,
    told: Connection,
) -> None:
    """Runs a command, as `python -m module words` in `folder`; ends with its exit code.

    Args:
        strike: What is to happen.
        poison: Id of an example whose pixels become NaN.
        said: Takes stdout and stderr.
        told: Takes the moments, a line each.
    """
    import tensorflow as tf

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in (1, 2):
        os.dup2(said.fileno(), number)
    sys.stdout, sys.stderr = (open(n, "w", buffering=1, closefd=False) for n in (1, 2))  # noqa: SIM115
    os.chdir(folder)
    os.environ["TMPDIR"] = os.path.dirname(folder)  # removed with the trials
    with native_logs.of_start():
        tf.config.list_physical_devices("GPU")  # otherwise the run would tell of a missing one
    sys.argv = [module, *words]
    main = importlib.import_module(module).main
    if module in ("pipeline.fit", "pipeline.export.__main__"):
        moments = Moments(told.fileno(), strike)
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
        import keras

        from pipeline.training.train_step import Step

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
    import tensorflow as tf

    kind = importlib.import_module("pipeline.tasks.image_classification").ImageClassification
    original = kind.prepare

    def prepare(self: Any, batch: dict[str, Any]) -> dict[str, Any]:
        batch = original(self, batch)
        if "id" not in batch:  # a request to the exported model
            return batch
        bad = tf.equal(batch["id"], id)[:, None, None, None]
        nan = tf.constant(float("nan"), batch["image"].dtype)
        return {**batch, "image": tf.where(bad, nan, batch["image"])}

    kind.prepare = prepare
