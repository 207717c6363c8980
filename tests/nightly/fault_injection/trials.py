"""Runs in forked children of one warm process, as `python -m` would start them but in no time.

The fork server is that of the standard library: it imports TensorFlow, runs nothing with it, and
forks. A restart then takes as long as building a model does, not 10 s of imports more.
"""

import dataclasses
import functools
import importlib
import json
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# A run under trial takes seconds; one that takes this long hangs.
PATIENCE = 300.0
# Held while a process is begun or asked for its end: where two threads ask, both read the one pipe
# that says it, and the second finds it empty and takes 255 for the exit code.
_ASKING = threading.Lock()


class Lost(Exception):
    """A trial that a run has not survived; the message says how."""


@dataclasses.dataclass(frozen=True)
class Strike:
    """What strikes a run from inside, and at which moment; see `struck`."""

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
        module: A room with a `main(arguments)`, such as `pipeline.fit`.
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


def evidence(*runs: Path) -> dict[str, Any]:
    """What `tests.nightly.fault_injection.evidence` finds of a run, or of two that are to be compared.

    Raises Lost if it cannot be read.
    """
    ended = run(
        "tests.nightly.fault_injection.evidence",
        [str(path.resolve()) for path in runs],
        runs[0].parent,
    )
    if ended.code:
        raise Lost(f"the run cannot be read: {ended.said[-300:]}")
    return json.loads(ended.said.splitlines()[-1])


@functools.cache
def _warm() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.nightly.fault_injection.warm"])
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
    """The child, from its first line on."""
    # By name: what a child imports, TensorFlow too, the command that starts it does not.
    struck = importlib.import_module("tests.nightly.fault_injection.struck")
    struck.enter(module, words, folder, strike, poison, said.fileno(), told.fileno())
