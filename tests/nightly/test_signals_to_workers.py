"""Signals to two workers at 20 moments: both end soon, and the run continues.

The signals come from outside, as those of Slurm do, once a worker has recorded an event.
With `-s`, the seconds of each moment are printed.
"""

import os
import random
import signal
import threading
import time
from typing import NamedTuple

import pytest
from recorded_workers import WORDS, Recorded, train

from pipeline.runtime.cpu_info import cores
from tests.nightly.fault_injection import reference

PROMPT = (
    10.0  # seconds from the end of the current operation to the end of both workers
)
CHIEF, WORKER, BOTH = (0,), (1,), (0, 1)
TERM, INT, USR1, KILL = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGUSR1,
    signal.SIGKILL,
)


class Moment(NamedTuple):
    """A signal to workers, up to `spread` seconds after an event of one of them."""

    number: signal.Signals
    targets: tuple[int, ...]
    event: str
    count: int = 1
    spread: float = 0.0
    of: int = 0
    """The worker that has the event."""
    completes: bool = False
    """Whether the chief, which no longer needs the others, completes the run."""


# Each list is one run: the same command, stopped at each moment, and then completed.
RUNS = {
    "before-training": [
        Moment(TERM, BOTH, "start", spread=0.5),
        Moment(USR1, BOTH, "meet", of=1),
        Moment(INT, BOTH, "opening", spread=0.5),
        Moment(TERM, WORKER, "building", spread=0.5),
        Moment(USR1, CHIEF, "tracing", spread=3.0),
    ],
    "in-training": [
        Moment(TERM, WORKER, "call"),
        Moment(USR1, BOTH, "validation"),
        Moment(INT, CHIEF, "save", 5),
        Moment(KILL, WORKER, "call"),
        Moment(TERM, BOTH, "save", 9),
    ],
    "late-in-training": [
        Moment(KILL, CHIEF, "call", 2),
        Moment(USR1, WORKER, "call", of=1),
        Moment(INT, WORKER, "validation", of=1),
        Moment(TERM, CHIEF, "training", spread=0.5),
        Moment(USR1, CHIEF, "validation"),
    ],
    "after-training": [
        Moment(TERM, CHIEF, "testing", spread=1.0),
        Moment(USR1, BOTH, "exporting", spread=1.0),
        Moment(INT, CHIEF, "export", 8),
        Moment(TERM, BOTH, "export", 20),
        Moment(USR1, WORKER, "testing", spread=1.0, completes=True),
    ],
}


@pytest.mark.parametrize("name", RUNS)
def test_signals_at_any_moment(tmp_path, undisturbed, name):
    chance = random.Random(name)
    words = [word for word in WORDS if word != "--export.no-enabled"]
    words = words if name == "after-training" else WORDS
    for number, moment in enumerate(RUNS[name]):
        folder = tmp_path / str(number)
        folder.mkdir()
        stop(tmp_path, folder, words, moment, chance)
    ends, _ = train(tmp_path, words=words)
    assert [code for code, _, _ in ends] == [0, 0], ends
    found = reference.evidence(tmp_path / "run")
    assert reference.differences(undisturbed, found) == []


def stop(cwd, folder, words, moment, chance):
    """Runs the command, and sends the signal at the moment."""
    before = max(reference.newest(cwd), 0)
    with Recorded(cwd, folder, words=words) as workers:
        while len(workers.times(moment.of, moment.event)) < moment.count:
            assert all(process.poll() is None for process in workers.processes), [
                workers.output(index) for index in BOTH
            ]
            threading.Event().wait(0.005)
        threading.Event().wait(chance.uniform(0, moment.spread))
        sent = time.monotonic()
        for index in moment.targets:
            workers.processes[index].send_signal(moment.number)
        ends = [workers.output(index) for index in BOTH]
        end = time.monotonic()
    seconds = end - max(sent, workers.last())
    print(f"{moment.event:12} {moment.number.name} to {moment.targets}:", end=" ")
    print(f"{seconds:.1f} s after the last event, {end - sent:.1f} s after the signal")
    assert seconds < PROMPT * max(1.0, os.getloadavg()[0] / cores())
    for index, (code, _, errors) in enumerate(ends):
        # A worker without the signal ends like those with it if they could agree, and
        # otherwise names the one that was lost.
        own = (-moment.number, 128 + moment.number)
        assert code in (own if index in moment.targets else expected(moment)), ends
        assert "Traceback" not in errors
    calls = [workers.times(index, "computed") for index in BOTH]
    assert all(sum(time > sent for time in times) <= 1 for times in calls), ends
    if moment.number != KILL and calls[0]:
        taken = reference_steps(before, len(calls[0]))
        assert reference.newest(cwd) == taken, (ends, before)
        assert f"stopped    after step {taken:,}; to continue: " in ends[0][1]


def expected(moment):
    """The exit codes of a worker that does not get the signal."""
    if moment.completes:
        return (0,)
    return (5,) if moment.number == KILL else (5, 143)


def reference_steps(before, calls):
    """The step after some calls of 4 steps, from a step on, in epochs of 12."""
    for _ in range(calls):
        before += min(4, 12 - before % 12)
    return before
