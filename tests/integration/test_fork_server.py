"""A forked process behaves like one that was started anew; only TensorFlow is imported already."""

import os
import signal
import subprocess

import fork_server
import pytest
from conftest import run_python

CODE = """
import os, pathlib, sys
assert sys.modules["tensorflow"]
print(sys.argv[1:], os.getcwd(), os.environ["MINE"], sys.stdin.read(), pathlib.Path(".").exists())
print("to stderr", file=sys.stderr)
sys.exit(3)
"""


def test_it_has_its_own_arguments_directory_environment_streams_and_exit_code(tmp_path):
    odd = "ü \udcff"
    done = run_python("-c", CODE, odd, cwd=tmp_path, env={"MINE": "7"})
    assert done.stdout == f"{[odd]!r} {tmp_path} 7  True\n"
    assert (done.stderr, done.returncode) == ("to stderr\n", 3)
    script = tmp_path / "script.py"
    script.write_text("import beside")
    (tmp_path / "beside.py").write_text("raise ValueError('as expected')")
    done = run_python(script, cwd="/")
    assert done.returncode == 1 and done.stderr.endswith("ValueError: as expected\n")


def test_it_takes_signals_and_has_a_time_limit(tmp_path):
    words = ("-c", "import time; print('ready', flush=True); time.sleep(100)")
    with pytest.raises(subprocess.TimeoutExpired):
        fork_server.run(*words, cwd=tmp_path, timeout=0.1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        there, here = os.pipe()
        with (
            open(there) as output,
            open(here, "w") as stdout,
            fork_server.Process(*words, cwd=tmp_path, stdout=stdout) as process,
        ):
            assert output.readline() == "ready\n" and process.poll() is None
            process.send_signal(number)
            assert process.wait(60) == process.poll() == -number
