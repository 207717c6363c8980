"""An interrupted cell of a notebook goes on when it is run again; a command ends in few words."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import REPOSITORY
from jupyter_client.manager import start_new_kernel

CELL = """
from pipeline.fit import fit
run = fit("digits_tiny", run_directory="run", train={"epochs": 40}, data={"limit": 400},
          log={"tensorboard": False}, export={"enabled": False})
print("trained", len(run.history["loss"]))
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """(manager, client) of a process that runs cells, in an empty folder."""
    folder = tmp_path_factory.mktemp("notebook")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    manager, client = start_new_kernel(cwd=str(folder), env=environment)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def executed(kernel, source, interrupt_at=None):
    """What a cell printed, and the name of the error that ended it; interrupted at this text."""
    manager, client = kernel
    asked = client.execute(source)
    said, error = "", None
    while True:
        message = client.get_iopub_msg(timeout=120)
        content = message["content"]
        if message["parent_header"].get("msg_id") != asked:
            continue
        if message["msg_type"] == "stream":
            said += content["text"]
            if interrupt_at and interrupt_at in said:
                interrupt_at = None
                manager.interrupt_kernel()
        elif message["msg_type"] == "error":
            error = content["ename"]
        elif content.get("execution_state") == "idle":
            return said, error


def test_an_interrupted_cell_goes_on_when_it_is_run_again(kernel):
    said, error = executed(kernel, CELL, interrupt_at="epoch  2/40")
    assert error == "KeyboardInterrupt"
    assert "--run-directory run continues after step" in said and "trained" not in said
    assert executed(kernel, "print(6 * 7)") == ("42\n", None)
    said, error = executed(kernel, CELL)
    assert error is None
    assert "resumed    after step" in said and "epoch  1/40" not in said
    assert said.endswith("trained 40\n")


STRUCK = """
import atexit, os, signal, sys
from pipeline.utils.errors import run_command
strike = lambda *_: os.kill(os.getpid(), signal.SIGINT)
# Whoever runs the tests in the background may have made them deaf.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Struck:
    reconfigure = flush = lambda *_, **__: None
    write = strike

def main(arguments):
    where = arguments[0]
    if where == "told of":
        sys.stderr = Struck()
    if where == "left":
        atexit.register(strike)
    if where == "at its end":
        atexit.register(strike)
        return 0
    strike()

run_command(main)
"""


@pytest.mark.parametrize(
    ("where", "said", "code"),
    [
        ("nowhere", "interrupted\n", 130),
        ("told of", "", 130),
        ("left", "interrupted\n", -signal.SIGINT),
        ("at its end", "", -signal.SIGINT),
    ],
)
def test_a_command_that_is_struck_again_while_it_ends_shows_no_stack_trace(where, said, code):
    done = subprocess.run(
        [sys.executable, "-c", STRUCK, where],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    # A shell calls the end by SIGINT 130, too.
    assert (done.stderr, done.returncode) == (said, code)
