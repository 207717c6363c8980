"""A run that is stopped anywhere and given again comes out as if it had never been stopped."""

import os
import subprocess
import sys

import pytest
from conftest import REPOSITORY
from stopping import changes, everything, require_equal, stop_after

from pipeline.fit import fit
from pipeline.utils.errors import Terminated


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same run, never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    return everything(fit("digits", run_directory=folder, **changes()), folder)


# A call takes 2 of the 8 steps of an epoch. It is asked after 4 calls of training, 1 of validation
# and at the beginning of the next epoch, or of one that is taken up: the 3rd time within the first
# epoch, the 4th at its last step, the 5th in its validation, the 6th after it.
@pytest.mark.parametrize(
    ("engine", "then", "stops"),
    [
        ("model_fit", "model_fit", (3, 1)),
        pytest.param("gradient_tape", "gradient_tape", (3, 1), marks=pytest.mark.long),
        ("model_fit", "gradient_tape", (4, 4)),
        ("gradient_tape", "model_fit", (5, 2)),
        pytest.param("model_fit", "model_fit", (5, 7), marks=pytest.mark.long),
        pytest.param("gradient_tape", "gradient_tape", (1, 13), marks=pytest.mark.long),
        pytest.param("gradient_tape", "model_fit", (17,), marks=pytest.mark.long),
    ],
)
def test_stopped_anywhere_it_comes_out_as_the_whole(tmp_path, whole, engine, then, stops):
    engines = [engine, then, then]
    for number, calls in enumerate(stops):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Terminated):
            stop_after(patch, calls)
            fit("digits", run_directory=tmp_path, **changes(train={"engine": engines[number]}))
    run = fit("digits", run_directory=tmp_path, **changes(train={"engine": then}))
    require_equal(everything(run, tmp_path), whole)
    names = sorted(path.name for path in tmp_path.glob("checkpoints/*"))
    assert len(names) <= 4 and all(name.startswith("step-") for name in names)


@pytest.mark.long
def test_so_it_does_on_two_replicas(tmp_path):
    process = subprocess.run(
        [sys.executable, REPOSITORY / "tests/support/stopping.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout.endswith("2 of 2\n")
