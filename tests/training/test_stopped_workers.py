"""Two workers that are stopped by a signal, and repeated, end as two that were not."""

import json
import time

import pytest
from workers import Workers

from tests.nightly.fault_injection import reference
from tests.nightly.fault_injection.harness import Fault

# 12 steps in an epoch, in calls of 4; all kinds of state, as in the fault injection.
_TEXT = """digits --model.name tests.nightly.fault_injection.reference.subject --data.limit 280
    --train.batch-size 16 --train.epochs 2 --train.steps-per-call 4 --train.checkpoint-steps 4
    --train.ema 0.9 --train.patience 2 --train.engine gradient_tape --data.augment
    --log.no-progress --export.no-enabled --run-directory run"""
WORDS = _TEXT.split()
# Seconds from the end of the current call to the end of both processes; 0.6 to 0.8 on
# two idle cores.
PROMPT = 10.0


def train(folder, faults=(None, None)):
    """Runs both workers to their end: (exit code, output, errors) of each, and seconds
    to stop.
    """
    records = [folder / f"{number}.events" for number in (0, 1)]
    words = []
    for record, fault in zip(records, faults, strict=True):
        record.touch()
        order = json.dumps([str(record), fault])
        recorder = "tests.nightly.fault_injection.recorder"
        words.append(["-m", recorder, order, "pipeline.fit", *WORDS])
    with Workers(words[0], folder, other=words[1]) as workers:
        ends = [workers.output(number) for number in (0, 1)]
        end = time.monotonic()
    lines = [
        line.split("\t")
        for record in records
        for line in record.read_text().splitlines()
    ]
    calls = [float(seconds) for name, seconds, _ in lines if name == "computed"]
    return ends, end - max(calls, default=end)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a run that is not stopped leaves on the disk."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ends, _ = train(folder)
    assert [code for code, _, _ in ends] == [0, 0], ends
    return reference.evidence(folder / "run")


def term(call):
    return Fault("SIGTERM", "call", call)


def interrupt(call):
    return Fault("SIGINT", "call", call)


# The faults of both workers, their exit codes, and the step that is saved.
STOPS = {
    "one": ((None, term(1)), [143, 143], 8),
    "chief": ((term(1), None), [143, 143], 8),
    "both": ((term(2), term(2)), [143, 143], 12),
    "one-in-validation": ((None, term(3)), [143, 143], 12),
    "one-by-ctrl-c": ((None, interrupt(4)), [143, 130], 20),
    "one-late": ((None, term(4)), [143, 143], 20),
    "chief-by-ctrl-c": ((interrupt(1), None), [130, 143], 8),
}


@pytest.mark.parametrize(
    "name",
    [
        "one",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in STOPS
            if name != "one"
        ),
    ],
)
def test_a_signal_to_any_worker_stops_all_and_the_run_continues(
    tmp_path, undisturbed, name
):
    """The chief saves, prints how to continue, and the same command ends bit for bit
    the same.
    """
    faults, codes, step = STOPS[name]
    ends, seconds = train(tmp_path, faults)
    assert [code for code, _, _ in ends] == codes, ends
    assert seconds < PROMPT
    assert f"stopped    after step {step:,}; to continue: " in ends[0][1]
    assert reference.newest(tmp_path) == step
    assert not any("Traceback" in errors for _, _, errors in ends)
    ends, _ = train(tmp_path)
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert (
        reference.differences(undisturbed, reference.evidence(tmp_path / "run")) == []
    )
