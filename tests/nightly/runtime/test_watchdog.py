"""A call that never comes back ends the process, and says where it hangs; slow work
does not.
"""

import pytest
from processes import REPOSITORY, run_python


@pytest.fixture(scope="module")
def children(tmp_path_factory):
    """(exit code by name, their folders) of the children in `watchdog_programs.py`."""
    folder = tmp_path_factory.mktemp("hanging")
    program = REPOSITORY / "tests/support/watchdog_programs.py"
    process = run_python(program, folder, cwd=folder)
    assert process.returncode == 0, process.stderr[-3000:]
    lines = [line.split() for line in process.stdout.splitlines()]
    codes = [line for line in lines if len(line) == 2 and line[1].lstrip("-").isdigit()]
    return {name: int(code) for name, code in codes}, folder


def test_time_between_calls_is_not_counted(children):
    codes, folder = children
    assert codes["between_calls"] == 0
    assert not (folder / "between_calls/hang.txt").exists()


@pytest.mark.parametrize(
    ("name", "place"), [("in_a_call", ""), ("in_the_data", "run/")]
)
def test_a_call_that_hangs_ends_the_process_with_its_stacks(children, name, place):
    codes, folder = children
    assert codes[name] == 6
    stacks = (folder / name / place / "hang.txt").read_text()
    assert stacks.startswith("error: a call took longer than")
    for told in (stacks, (folder / name / "stderr").read_text()):
        assert "hang.txt:\n" in told
        assert "most recent call first" in told and " in never\n" in told, told[-3000:]


def test_a_trial_that_hangs_ends_it_too_and_leaves_nothing(children):
    codes, folder = children
    assert codes["in_the_trial"] == 6
    told = (folder / "in_the_trial/stderr").read_text()
    assert "a call took longer than 6 s; stacks of all threads:\n" in told
    assert " in never\n" in told and " in seconds_per_step\n" in told, told[-3000:]
    assert [path.name for path in (folder / "in_the_trial").iterdir()] == ["stderr"]
