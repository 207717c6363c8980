"""Runs survive injected faults, and a run that does not is noticed."""

import random
import signal

import pytest

from tests.nightly.fault_injection import __main__ as command
from tests.nightly.fault_injection import faults, harness, reference
from tests.nightly.fault_injection.harness import Fault, RunLost
from tests.nightly.fault_injection.reference import Workspace, differences

TRIALS = {"kill": 70, "flip": 300, "term": 100, "disk": 100, "race": 50, "switch": 20, "time": 10}
long = pytest.mark.long


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    return Workspace(tmp_path_factory.mktemp("faults"))


# The seed chooses the engine and the details; seed 9 damages all checkpoints.
@pytest.mark.parametrize(
    ("fault", "seed"),
    [
        ("switch", 0),
        *(pytest.param(*trial, marks=long) for trial in (("flip", 9), ("disk", 2), ("term", 1))),
        *(pytest.param(name, 0, marks=long) for name in ("kill", "flip", "race", "nan")),
        *(pytest.param(name, 0, marks=long) for name in ("replicas", "time")),
    ],
)
def test_a_run_survives(space, fault, seed):
    command.FAULTS[fault](space, seed)


@long
@pytest.mark.parametrize("fault", TRIALS)
def test_many_runs_survive(fault):
    (count,) = command.inject(command.Options(faults=(fault,), trials=TRIALS[fault])).values()
    assert count.injected and not count.lost


def test_a_kill_inside_a_save(space):
    folder = space.fresh()
    saves = [e for e in space.reference("model_fit").result.events if e.name == "save"]
    count = next(n for n, event in enumerate(saves, 1) if "os.rename" in event.detail)
    fault = Fault("SIGKILL", "save", count)
    result = harness.run("pipeline.fit", reference.words("model_fit"), folder, fault)
    assert result.code == 128 + signal.SIGKILL
    assert "os.rename" in result.fault.detail and result.events[-1] == result.fault
    assert len(list((folder / "run/checkpoints").glob(".unpublished-*/*"))) >= 2
    assert reference.newest(folder) == -1


@long
def test_evidence_tells_runs_apart(space):
    """Otherwise `bit for bit` would mean nothing."""
    engine, other = reference.ENGINES
    expected = space.reference(engine).evidence
    assert differences(expected, space.reference(other).evidence) == []
    assert expected["finite"] and expected["left over"] == []
    assert [entry["epoch"] for entry in expected["log"]] == [1, 2, 3]
    assert len(expected["scalars"]) == 3 * len(expected["state"]["history"])
    for kind in ("model", "optimizer", "update"):
        assert any(name.startswith(kind) for name in expected["variables"])
    folder = space.complete(engine, "--runtime.seed", "1")
    different = " ".join(differences(expected, reference.evidence(folder / "run")))
    for part in ("variables", "state history loss", "log", "scalars", "result test"):
        assert part in different


@long
def test_a_run_that_differs_is_lost(space):
    folder = space.stopped("model_fit", 9)
    space.finish(folder, "model_fit")
    log = folder / "run/log.jsonl"
    log.write_text(log.read_text() * 2)
    with pytest.raises(RunLost, match="log: 6 entries instead of 3"):
        space.require_equal(folder, "model_fit")
    words = reference.words("model_fit", False, "--train.epochs", "4")
    with pytest.raises(RunLost, match="exit code 2, not 0"):
        reference.require_code(harness.run("pipeline.fit", words, folder), 0)


@long
def test_every_corruption_changes_the_file(tmp_path):
    chance, seen = random.Random(0), set()
    for _ in range(40):
        path = tmp_path / "file"
        path.write_bytes(b"abcdef")
        seen.add(faults.corrupt(chance, path))
        assert not path.exists() or path.read_bytes() != b"abcdef"
    assert seen == {"flip", "cut", "empty", "delete"}


def test_the_command_counts_lost_runs(monkeypatch, capsys):
    def second_is_lost(space, seed):
        if seed == 1:
            raise RunLost("it differs")
        return 2

    monkeypatch.setattr(command, "FAULTS", {"kill": second_is_lost, "flip": lambda *_: 1})
    assert command.main(["--faults", "kill", "flip", "--trials", "3"]) == 1
    output = capsys.readouterr().out
    assert "lost      kill, --seed 1: it differs" in output
    rows = [line.split()[:3] for line in output.splitlines()]
    assert ["kill", "4", "1"] in rows and ["flip", "3", "0"] in rows
    assert command.main(["--faults", "flip", "--minutes", "0"]) == 0
    assert ["flip", "1", "0"] in [row.split()[:3] for row in capsys.readouterr().out.splitlines()]
