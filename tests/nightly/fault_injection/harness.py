"""Runs commands in forked processes, injects faults into them and records what happened."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

_REPOSITORY = Path(__file__).parents[3]
sys.path.append(str(_REPOSITORY / "tests/support"))  # pytest has it already

import fork_server  # noqa: E402

# A run takes seconds; one that takes this long hangs.
TIMEOUT = 300.0


class RunLost(Exception):
    """A run did not survive a fault; the message says how."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens to a run from inside, and when; see `recorder.py`."""

    action: str
    """A signal (`SIGKILL`, `SIGTERM`, `SIGINT`), `full` (no disk space for the next operation that
    needs some), `limit` (no file may grow beyond `bytes` until this save ends) or `fill` (until the
    next save begins)."""
    event: str
    """`save`, `export` or `file` (file operations of these), `trace`, `validation` or `call`."""
    count: int = 1
    """Which of the events of this name, from 1."""
    delay: float = 0.0
    """Seconds after the event."""
    again: float | None = None
    """Seconds after which the signal is sent again; None: once."""
    bytes: int = 0
    """Largest file size, for `limit` and `fill`."""


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened inside a run."""

    name: str
    seconds: float
    """On the monotonic clock, which all processes share."""
    detail: str


@dataclasses.dataclass(frozen=True)
class Result:
    """How a run ended."""

    code: int
    """As in a shell: 128 plus the number of a signal that killed it."""
    output: str
    """Its stdout and stderr."""
    events: tuple[Event, ...]
    end: float
    """On the monotonic clock."""

    def count(self, name: str) -> int:
        """How many events of this name there were."""
        return sum(event.name == name for event in self.events)

    @property
    def fault(self) -> Event | None:
        """When the fault was injected; None if the run ended before."""
        return next((event for event in self.events if event.name == "fault"), None)


class Child:
    """A command in its own process; a `with` block kills it at its end if it still runs.

    Args:
        module: A module with a `main(arguments)`, such as `pipeline.fit`.
        words: The arguments.
        folder: Its working directory.
        fault: Injected from inside.
        nan: Id of an example whose pixels become NaN; None: no example's.
    """

    def __init__(
        self,
        module: str,
        words: list[str],
        folder: Path,
        fault: Fault | None = None,
        nan: int | None = None,
    ) -> None:
        self._events = tempfile.NamedTemporaryFile(suffix=".events")  # noqa: SIM115
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        order = {"events": self._events.name, "nan": nan}
        order["fault"] = fault and dataclasses.asdict(fault)
        self.start = time.monotonic()
        self._process = fork_server.Process(
            *("-m", "tests.nightly.fault_injection.recorder", json.dumps(order), module, *words),
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder.parent)},  # removed with the trials
            stdout=self._output,
            stderr=self._output,
        )
        self._end = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process, self._events, self._output:
            pass

    def runs_for(self, seconds: float) -> bool:
        """Whether it still runs after that many seconds."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        self._end = self._end or time.monotonic()
        return False

    def signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        self._process.send_signal(number)

    def result(self) -> Result:
        """Waits for its end. A run that hangs is killed."""
        if self.runs_for(TIMEOUT):
            self.signal(signal.SIGKILL)
            self.runs_for(TIMEOUT)
        events = []
        for line in Path(self._events.name).read_text(errors="replace").splitlines():
            name, seconds, detail = line.split("\t", 2)
            events.append(Event(name, float(seconds), detail))
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")
        code = self._process.returncode
        assert code is not None
        return Result(128 - code if code < 0 else code, output, tuple(events), self._end)


def run(module: str, words: list[str], folder: Path, fault: Fault | None = None) -> Result:
    """Runs a command to its end."""
    with Child(module, words, folder, fault) as child:
        return child.result()
