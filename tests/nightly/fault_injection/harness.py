"""Runs commands in forked processes, injects faults into them and records what
happened.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

_REPOSITORY = Path(__file__).parents[3]
sys.path.append(str(_REPOSITORY / "tests/support"))  # pytest has it already

import fork_server  # noqa: E402

# A run takes seconds; one that takes this long hangs.
TIMEOUT = 300.0


class Fault(NamedTuple):
    """What happens to a run from inside, and when; see `recorder.py`.

    The action is the name of a signal, or `limit`: no file may grow beyond `bytes`
    until this save ends. The event is `start`, `call`, or a file operation of a `save`
    or an `export`.
    """

    action: str
    event: str
    count: int = 1
    delay: float = 0.0
    bytes: int = 0


class Event(NamedTuple):
    """Something that happened inside a run, in seconds of the monotonic clock."""

    name: str
    seconds: float
    detail: str


class Result(NamedTuple):
    """How a run ended: its exit code as in a shell, stdout and stderr, events, and
    times.
    """

    code: int
    output: str
    events: list[Event]
    start: float
    end: float

    def times(self, name: str) -> list[float]:
        """When the events of this name happened."""
        return [event.seconds for event in self.events if event.name == name]


def run(
    module: str, words: list[str], folder: Path, fault: Fault | None = None
) -> Result:
    """Runs the `main(arguments)` of a module in a folder to its end."""
    start = time.monotonic()
    with (
        tempfile.NamedTemporaryFile("r") as events,
        tempfile.TemporaryFile("w+") as output,
    ):
        order = json.dumps([events.name, fault])
        with fork_server.Process(
            *("-m", "tests.nightly.fault_injection.recorder", order, module, *words),
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder.parent)},
            stdout=output,
            stderr=output,
        ) as process:
            code = process.wait(TIMEOUT)
        end = time.monotonic()
        lines = [line.rstrip("\n").split("\t", 2) for line in events]
        output.seek(0)
        text = output.read()
    found = [Event(name, float(seconds), detail) for name, seconds, detail in lines]
    return Result(128 - code if code < 0 else code, text, found, start, end)
