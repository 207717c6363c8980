"""A command that is interrupted ends without a stack trace."""

import signal

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
