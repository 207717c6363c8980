"""Two workers that are stopped by a signal, and repeated, end as two that were not."""

from recorded_workers import train

from tests.nightly.fault_injection import reference
from tests.nightly.fault_injection.harness import Fault

# Seconds from the end of the current call to the end of both processes; 0.6 to 0.8 on
# two idle cores.
PROMPT = 10.0


def test_a_signal_to_any_worker_stops_all_and_the_run_continues(tmp_path, undisturbed):
    """The chief saves, prints how to continue, and the same command ends bit for bit
    the same. The nightly `test_signals_to_workers.py` has other moments.
    """
    ends, seconds = train(tmp_path, (None, Fault("SIGUSR1", "call", 1)))
    assert [code for code, _, _ in ends] == [143, 138], ends
    assert seconds < PROMPT
    assert "stopped    after step 8; to continue: " in ends[0][1]
    assert reference.newest(tmp_path) == 8
    assert not any("Traceback" in errors for _, _, errors in ends)
    ends, _ = train(tmp_path)
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert (
        reference.differences(undisturbed, reference.evidence(tmp_path / "run")) == []
    )
