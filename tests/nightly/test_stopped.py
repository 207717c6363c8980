"""A run that is stopped at any time and repeated ends as if it had never
been stopped.
"""

import os
import signal

import pytest
from interrupted_run import changes, everything, require_equal, stop_after
from processes import REPOSITORY, run_python

from pipeline.fit import fit
from pipeline.report import pictures
from pipeline.runtime.signals import StopSignals
from pipeline.utils.errors import Terminated


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same run, never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    return everything(fit("digits", run_directory=folder, **changes()), folder)


# A call takes 2 of the 8 steps of an epoch. `StopSignals.reason` is asked after each of the 4
# calls of training, after the call of validation, and at the start of an epoch, also of
# a resumed one. So 3 stops a new run within its first epoch, 4 at its last step, 5 in
# its validation, 6 after it.
@pytest.mark.parametrize(
    ("engine", "then", "stops"),
    [
        ("model_fit", "gradient_tape", (3, 4)),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ("model_fit", "model_fit", (5, 7)),
                ("gradient_tape", "gradient_tape", (2, 13)),
                ("gradient_tape", "model_fit", (17,)),
            )
        ),
    ],
)
def test_a_stopped_run_ends_as_the_whole(tmp_path, whole, engine, then, stops):
    for number, calls in enumerate(stops):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Terminated):
            stop_after(patch, calls)
            train = {"engine": then if number else engine}
            fit("digits", run_directory=tmp_path, **changes(train=train))
    run = fit("digits", run_directory=tmp_path, **changes(train={"engine": then}))
    require_equal(everything(run, tmp_path), whole)
    names = sorted(path.name for path in tmp_path.glob("checkpoints/*"))
    assert len(names) <= 4 and all(name.startswith("step-") for name in names)


@pytest.fixture
def python_handles_ctrl_c():
    """Also in a process that ignores SIGINT, such as a background job of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_ctrl_c")
def test_after_ctrl_c_fit_resumes_in_the_same_process(
    tmp_path, whole, monkeypatch, capsys
):
    """As an interrupted notebook cell that is run again."""
    asked, original = [], StopSignals.reason

    def interrupted(stops, *arguments):
        asked.append(stops)
        if len(asked) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return original(stops, *arguments)

    monkeypatch.setattr(StopSignals, "reason", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit("digits", run_directory=tmp_path, **changes())
    said = capsys.readouterr().out
    assert f"; to continue: pipeline fit --resume {tmp_path} (in Python, " in said
    # As after `kill -9` in the third epoch, when no checkpoint was due for long.
    (tmp_path / "log.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n{"epo')
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pictures, "png", lambda _: signal.raise_signal(signal.SIGINT))
        fit("digits", run_directory=tmp_path, **changes())
    said = capsys.readouterr().out
    assert "resumed    after step " in said
    assert "checkpoint; 2 epochs of the log are repeated\n" in said
    run = fit("digits", run_directory=tmp_path, **changes())
    assert (
        "result.json, predictions.csv, curves.png, mistakes.png"
        in capsys.readouterr().out
    )
    require_equal(everything(run, tmp_path), whole)
    assert len(list(tmp_path.glob("*.png"))) == 3
    (tmp_path / "curves.png").unlink()
    fit("digits", run_directory=tmp_path, **changes())
    assert "result.json, predictions.csv, mistakes.png" in capsys.readouterr().out


def test_a_stopped_run_on_two_replicas_ends_as_the_whole(tmp_path):
    process = run_python(REPOSITORY / "tests/support/interrupted_run.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout.endswith("2 of 2\n")
