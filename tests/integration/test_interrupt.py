"""An interrupted notebook cell resumes when it is run again; a command ends without a trace."""

import os
import signal

import pytest
from conftest import REPOSITORY, run_python
from jupyter_client.manager import start_new_kernel

CELL = """
from pipeline.fit import fit
run = fit("digits_tiny", run_directory="run", train={"epochs": 40}, data={"limit": 400},
          log={"tensorboard": False}, export={"enabled": False})
print("trained", len(run.history["loss"]))
"""


@pytest.fixture
def executed(workplace):
    """Runs a cell in a kernel: its output, and the name of the error that ended it."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    manager, client = start_new_kernel(cwd=str(workplace), env=environment)

    def execute(source, interrupt_at=None):
        request = client.execute(source)
        output, error = "", None
        while True:
            message = client.get_iopub_msg(timeout=120)
            content = message["content"]
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "stream":
                output += content["text"]
                if interrupt_at and interrupt_at in output:
                    interrupt_at = None
                    manager.interrupt_kernel()
            elif message["msg_type"] == "error":
                error = content["ename"]
            elif content.get("execution_state") == "idle":
                return output, error

    yield execute
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.mark.long
def test_an_interrupted_cell_resumes_when_it_is_run_again(executed):
    output, error = executed(CELL, interrupt_at="epoch  2/40")
    assert error == "KeyboardInterrupt"
    assert "--run-directory run " in output and "trained" not in output
    assert executed("print(6 * 7)") == ("42\n", None)
    output, error = executed(CELL)
    assert error is None
    assert "resumed    " in output and "epoch  1/40" not in output
    assert output.endswith("trained 40\n")


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
