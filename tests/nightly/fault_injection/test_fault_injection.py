"""Runs that are killed, stopped or damaged, and repeated, end as an
uninterrupted one.
"""

import random
import re
import signal

import pytest

from tests.nightly.fault_injection import reference
from tests.nightly.fault_injection.harness import Fault
from tests.nightly.fault_injection.reference import ENGINES, newest, require_code

# A signal must take effect within this many seconds after the current call.
PROMPT = 2.0
long = pytest.mark.long


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    return reference.Workspace(tmp_path_factory.mktemp("faults"))


def some_time(chance, expected, action, export):
    """A signal at a random time, or at a file operation or between two."""
    if chance.random() < 0.5:
        seconds = expected.result.end - expected.result.start
        return Fault(action, "start", delay=chance.uniform(0, seconds))
    event = chance.choice(("save", "export") if export else ("save",))
    count = chance.randint(1, len(expected.result.times(event)))
    return Fault(action, event, count, chance.choice((0.0, chance.uniform(0, 0.03))))


def kill(space, chance, engine):
    """Up to three SIGKILL in one run; none of them leaves a damaged checkpoint."""
    export = chance.random() < 0.2
    expected, folder, last = space.reference(engine, export), space.fresh(), -1
    for _ in range(3):
        fault = some_time(chance, expected, "SIGKILL", export)
        result = reference.run(folder, engine, export, fault)
        assert "damaged" not in result.output
        require_code(result, 0, 137)
        assert newest(folder) >= last, "the newest checkpoint is gone"
        last = newest(folder)
    assert "damaged" not in space.finish(folder, engine, export).output


def term(space, chance, engine):
    """SIGTERM or SIGINT: the run stops soon after the signal and saves everything."""
    export = chance.random() < 0.2
    expected, folder = space.reference(engine, export), space.fresh()
    fault = some_time(chance, expected, chance.choice(("SIGTERM", "SIGINT")), export)
    result = reference.run(folder, engine, export, fault)
    require_code(result, 0, 128 + getattr(signal, fault.action))
    if result.code:
        sent = result.times("fault")[0] + fault.delay
        assert result.end - sent < PROMPT + expected.longest_call
        assert sum(seconds > sent for seconds in result.times("computed")) <= 1
        calls = len(result.times("call"))
        assert not calls or newest(folder) == reference.steps_after(calls)
    space.finish(folder, engine, export)


def flip(space, chance, engine):
    """A damaged checkpoint is named, and the one before it used; or all of them are
    damaged.
    """
    folder = space.stopped(engine, chance.choice((7, 9)))
    checkpoints = sorted((folder / "run/checkpoints").glob("step-*"))
    damaged = checkpoints if chance.random() < 0.2 else checkpoints[-1:]
    for checkpoint in damaged:
        path = chance.choice(sorted(checkpoint.iterdir()))
        content = bytearray(path.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        cut = chance.choice((0, chance.randrange(1, len(content)), len(content)))
        path.write_bytes(content[:cut])
    if damaged == checkpoints:
        result = reference.run(folder, engine)
        require_code(result, 3)
        assert result.output.splitlines()[-1].startswith("error: ")
        return
    result = space.finish(folder, engine)
    before = int(checkpoints[-2].name.removeprefix("step-"))
    assert damaged[0].name in result.output
    assert re.search(rf"^resumed +\D*{before}\b", result.output, re.MULTILINE)


def disk(space, chance, engine):
    """The disk is full until a save ends: the run continues, with one warning."""
    expected, folder = space.reference(engine), space.fresh()
    count = chance.randint(1, len(expected.result.times("save")))
    fault = Fault(
        "limit", "save", count, bytes=chance.choice((0, chance.randint(1, 60_000)))
    )
    result = reference.run(folder, engine, fault=fault)
    calls = [len(run.times("call")) for run in (result, expected.result)]
    # Before the first step there is nothing to lose: the run does not begin.
    require_code(result, 0 if calls[0] else 2)
    assert calls[0] in (0, calls[1])
    assert len(re.findall("^warning", result.output, re.MULTILINE)) <= 1
    again = reference.run(
        folder, engine
    )  # repeats the steps after a last save that failed
    require_code(again, 0)
    found = reference.evidence(folder / "run")
    # An earlier checkpoint is kept instead of one that could not be written.
    different = set(reference.differences(expected.evidence, found))
    assert different <= {"checkpoints", "state"} and len(found["checkpoints"]) >= 2
    assert found["checkpoints"][-1] == expected.evidence["checkpoints"][-1]


@long
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("fault", [kill, term, flip, disk])
def test_a_run_survives(space, fault, seed):
    fault(space, random.Random(seed), ENGINES[seed % 2])


@long
def test_a_kill_inside_a_save(space):
    folder = space.fresh()
    events = space.reference("model_fit").result.events
    saves = [event for event in events if event.name == "save"]
    count = next(n for n, event in enumerate(saves, 1) if "os.rename" in event.detail)
    result = reference.run(folder, "model_fit", fault=Fault("SIGKILL", "save", count))
    assert result.code == 128 + signal.SIGKILL
    assert result.events[-1].name == "fault" and "os.rename" in result.events[-1].detail
    assert len(list((folder / "run/checkpoints").glob(".unpublished-*/*"))) >= 2
    assert newest(folder) == -1


@long
def test_evidence_tells_runs_apart(space):
    """Otherwise `bit for bit` would mean nothing."""
    one, other = (space.reference(engine).evidence for engine in ENGINES)
    assert reference.differences(one, other) == [] and one["left over"] == []
    assert [entry["epoch"] for entry in one["log"]] == [1, 2, 3] and one["scalars"]
    for kind in ("model", "optimizer", "update"):
        assert any(name.startswith(kind) for name in one["variables"])
    folder = space.fresh()
    require_code(
        reference.run(folder, ENGINES[0], False, None, "--runtime.seed", "1"), 0
    )
    different = reference.differences(one, reference.evidence(folder / "run"))
    assert {"variables", "state", "log", "scalars", "result"} <= set(different)
