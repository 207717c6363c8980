"""A command that is interrupted ends without a stack trace."""

import os
import re
import signal

import concurrent_processes
import pytest
from processes import run_python

INTERRUPTED = """
import atexit, os, signal, sys
from pipeline.utils.errors import run_command
interrupt = lambda *_: os.kill(os.getpid(), signal.SIGINT)
# A shell starts its background jobs with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Stream:
    reconfigure = flush = lambda *_, **__: None
    write = interrupt

def main(arguments):
    where = arguments[0]
    if where == "while reported":
        sys.stderr = Stream()
    if where in ("at exit", "only at exit"):
        atexit.register(interrupt)
    if where == "only at exit":
        return 0
    interrupt()

run_command(main)
"""


@pytest.mark.parametrize(
    ("where", "message", "code"),
    [
        ("once", "interrupted\n", 130),
        ("while reported", "", -signal.SIGINT),
        # A shell calls the end by SIGINT 130, too.
        ("at exit", "interrupted\n", -signal.SIGINT),
        ("only at exit", "", -signal.SIGINT),
    ],
)
def test_a_second_ctrl_c_shows_no_stack_trace(tmp_path, where, message, code):
    done = run_python("-c", INTERRUPTED, where, cwd=tmp_path, fresh=True)
    assert (done.stderr, done.returncode) == (message, code)


# Runs and versions that several processes begin at the same moment.


@pytest.mark.parametrize("killed", [True, False])
def test_one_of_several_processes_gets_a_run_directory(tmp_path, killed):
    """The others report it, even after a killed one."""
    for count in (2, 4):
        found = concurrent_processes.race(
            count, concurrent_processes.take_lock, tmp_path, killed
        )
        (winner,) = [process for process, refusal in found.items() if refusal is None]
        message = (
            rf".* is in use by process {winner} since 20\d\d-\d\d-\d\d"
            r" \d\d:\d\d:\d\d\S*; wait"
        )
        assert all(re.match(message, refusal) for refusal in found.values() if refusal)


def test_processes_that_start_together_never_share_a_number(tmp_path):
    runs = concurrent_processes.race(8, concurrent_processes.make_run, tmp_path)
    assert sorted(runs.values()) == [f"runs/digits-{n}" for n in range(1, 9)]
    versions = concurrent_processes.race(
        8, concurrent_processes.publish, tmp_path / "models"
    )
    assert sorted(versions.values()) == list("12345678")
    for process, name in versions.items():
        assert (tmp_path / "models" / name / "saved_model.pb").read_text() == str(
            process
        )
    assert sorted(os.listdir(tmp_path / "models")) == [".published", *"12345678"]
