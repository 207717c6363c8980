"""Starts Python processes.

`run_module("pipeline.fit", "digits", cwd=tmp_path)` and `run_python("-c", code,
cwd=tmp_path)` fork a process that has already imported TensorFlow, Keras and the
package, which saves 4 to 9 seconds. The child has its own arguments, directory,
environment, streams and exit code. Streams, signals and several processes at once:
`fork_server.Process`, which is used like `subprocess.Popen`.

Pass `fresh=True` for a new interpreter if the test is about the start: which modules
are imported, what native code prints then, variables that Python, TensorFlow, Keras or
matplotlib read when they are imported, or another copy of the package. `fresh=True` is
also faster if the process does not import TensorFlow and no other test of the file
needs the fork server.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import fork_server

REPOSITORY = Path(__file__).parents[2]


def run_module(
    module: str,
    *arguments: object,
    cwd: Path,
    options: Sequence[str] = (),
    fresh: bool = False,
) -> subprocess.CompletedProcess:
    """Runs `python -m module arguments` without a terminal; options of Python imply
    `fresh`.
    """
    words = [*options, "-m", module, *arguments]
    return run_python(*words, cwd=cwd, fresh=fresh or bool(options))


def run_python(
    *words: object, cwd: Path, env: Mapping[str, str] | None = None, fresh: bool = False
) -> subprocess.CompletedProcess:
    """Runs `python words` (`-m module`, `-c code` or a file) with this environment and
    `env`.
    """
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200", **(env or {})}
    if not fresh:
        return fork_server.run(*words, cwd=cwd, env=env)
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )
