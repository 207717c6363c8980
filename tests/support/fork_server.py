"""Python processes that start with TensorFlow imported: forked from one that has only
imported it.

A cold start with TensorFlow takes 4 to 9 seconds, a fork 0.1. `Process(...)` is used
like `subprocess.Popen`: the child has its own arguments, directory, environment,
streams and exit code, and takes signals. As a program, this file is the server: it
imports what a run imports and forks once per request. It runs no operation, because
that would start threads, which a fork loses.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Self

REPOSITORY = Path(__file__).parents[2]
_MAX_REQUEST = 2**20
# What a run imports late, besides the modules of the package.
_LATE = (
    "sklearn.datasets",
    "scipy.stats",
    "matplotlib.backends.backend_agg",
    "threadpoolctl",
)


class Process:
    """A forked Python process; a `with` block kills it at its end if it still runs.

    Args:
        words: Arguments of `python`: `-m module ...`, `-c code ...` or `file.py ...`.
        cwd: Its working directory.
        env: Its environment. Default: this process's.
        stdout: File object that takes its output; None discards it.
        stderr: Takes its errors.
    """

    def __init__(
        self,
        *words: object,
        cwd: Path | str,
        env: Mapping[str, str] | None = None,
        stdout: IO | None = None,
        stderr: IO | None = None,
    ) -> None:
        self.args = [sys.executable, *map(str, words)]
        self.returncode: int | None = None
        request = [self.args[1:], str(cwd), dict(os.environ if env is None else env)]
        self._status, theirs = socket.socketpair()
        with open(os.devnull, "r+b") as null, theirs:
            files = [(stream or null).fileno() for stream in (None, stdout, stderr)]
            socket.send_fds(
                _server(), [json.dumps(request).encode()], [*files, theirs.fileno()]
            )
        self.pid = self._number()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended; raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                self.returncode = os.waitstatus_to_exitcode(self._number())
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        found = self._status.recv(8)
        if not found:
            raise RuntimeError(f"the fork server ended; request: {self.args}")
        return int.from_bytes(found, "little")


def run(
    *words: object,
    cwd: Path | str,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
) -> subprocess.CompletedProcess:
    """As `subprocess.run([sys.executable, *words], capture_output=True, text=True)`."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        with Process(*words, cwd=cwd, env=env, stdout=stdout, stderr=stderr) as process:
            code = process.wait(timeout)
        texts = []
        for stream in (stdout, stderr):
            stream.seek(0)
            texts.append(stream.read().decode().replace("\r\n", "\n"))
    return subprocess.CompletedProcess(process.args, code, *texts)


@functools.cache
def _server() -> socket.socket:
    """The connection to a new server, which ends with it."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        # No terminal: its children take its streams for theirs.
        server = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            cwd="/",
            env={
                **os.environ,
                "PYTHONPATH": str(REPOSITORY),
                "TF_CPP_MIN_LOG_LEVEL": "2",
            },
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    atexit.register(lambda: (ours.close(), server.wait()))
    return ours


def _import_all() -> None:
    from pipeline.runtime import native_logs

    os.environ.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", KERAS_BACKEND="tensorflow")
    with native_logs.filter_startup():
        import default_seed

        import pipeline

        default_seed.apply()

        for name in _LATE:
            importlib.import_module(name)
        for module in pkgutil.walk_packages(pipeline.__path__, "pipeline."):
            # The modules of `launch` need Ray.
            if not module.name.endswith(("__main__", "ray_training", "ray_backend")):
                importlib.import_module(module.name)


def _serve(requests: socket.socket) -> list[str]:
    """Returns in each child, with its arguments."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C at the tests reaches the server, too
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the watchers
    while True:
        message, files, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 4)
        if not message:
            os._exit(0)
        if not os.fork():
            break
        for file in files:
            os.close(file)
    requests.close()
    *streams, status = files
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if child := os.fork():
        for file in streams:
            os.close(file)
        ended = os.waitpid(child, 0)[1]
        with contextlib.suppress(BrokenPipeError):  # nobody waits for it
            os.write(status, ended.to_bytes(8, "little"))
        os._exit(0)
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    words, cwd, environment = json.loads(message)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    _open_streams(1 if "PYTHONUNBUFFERED" in environment else -1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.write(
        status, os.getpid().to_bytes(8, "little")
    )  # from now on it may get signals
    os.close(status)
    return words


def _open_streams(buffering: int) -> None:
    """As at the start of Python; those of the server know that theirs can seek."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def _run(words: list[str]) -> None:
    """What the interpreter does with its arguments."""
    if words[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = words[1:]
        if not hasattr(sys.modules.get(words[1]), "__path__"):
            sys.modules.pop(
                words[1], None
            )  # it runs as `__main__`, and was not imported yet
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _import_all()
    gc.freeze()  # otherwise each child would touch, and so copy, all that was imported
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))
