"""Signals and time limits: training stops after the call, saves, and can be resumed."""

import re

import pytest
import signal_handlers
from interrupted_run import changes

from pipeline.fit import fit
from pipeline.runtime.signals import StopSignals


@pytest.fixture(autouse=True)
def default_handlers():
    with signal_handlers.default_handlers():
        yield


def test_a_time_limit_ends_a_run_with_a_result_and_a_longer_one_continues_it(
    tmp_path, monkeypatch, capsys
):
    """The clock stands still but for the third call of training, which
    takes an hour.
    """
    given = changes(runtime={"time_limit": "30m"})
    calls = [0]

    def left(self):
        calls[0] += 1
        return -1.0 if calls[0] >= 6 else 100.0

    with monkeypatch.context() as patch:
        patch.setattr(StopSignals, "seconds_left", property(left))
        run = fit("digits", run_directory=tmp_path, **given)
    assert (
        run.result["stopped"] == "time"
        and run.result["steps"] < 24
        and run.test["examples"]
    )
    assert (
        "--runtime.time-limit 30m; a longer limit continues" in capsys.readouterr().out
    )
    again = fit("digits", run_directory=tmp_path, **given)  # there would be time left
    assert (
        again.result == run.result and "nothing was trained" in capsys.readouterr().out
    )
    given["runtime"]["time_limit"] = "2h"
    run = fit("digits", run_directory=tmp_path, **given)
    assert run.result["stopped"] is None and run.result["steps"] == 24
    assert re.search(
        r"time +\d:\d\d of 2:00:00 used; a longer --run", capsys.readouterr().out
    )
