"""Trials of a sweep: runs in processes of their own."""

import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import safe_io

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>


@dataclasses.dataclass
class Trial:
    """A process that carries out a run."""

    number: int
    run: RunDirectory
    process: subprocess.Popen[bytes]
    device: int
    """The place that it takes: the number of a GPU, or of a share of the CPU."""
    epochs: int = 0
    """Epochs whose metrics have been read."""
    is_pruned: bool = False

    def stop(self) -> None:
        """Asks the process to save a checkpoint and to end."""
        self.process.send_signal(signal.SIGTERM)

    def new_epochs(self) -> Iterator[dict[str, Any]]:
        """The lines of the log that have not been read yet."""
        if not self.run.log.exists():
            return
        lines = safe_io.read_text(self.run.log).splitlines()
        for line in lines[self.epochs :]:
            if not line.endswith("}"):  # incomplete
                return
            self.epochs += 1
            yield json.loads(line)

    @property
    def result(self) -> Mapping[str, Any]:
        """The result of the run; empty if there is none."""
        try:
            return safe_io.read_json(self.run.result)
        except (OSError, ValueError):
            return {}

    @property
    def error(self) -> str:
        """The signal that ended the process, or the last line that it has printed."""
        code = self.process.returncode
        if code is not None and code < 0:
            return f"ended by {signal.Signals(-code).name}"
        text = log_path(self.run.path).read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        return lines[-1].removeprefix("error: ") if lines else ""


def log_path(run: Path) -> Path:
    """What a trial prints, beside its run directory."""
    return run.with_name(f"{run.name}.log")


def start(
    number: int,
    run: Path,
    words: Sequence[str],
    device: int,
    environment: Mapping[str, str],
) -> Trial:
    """Starts `pipeline fit` in a run directory; it continues a run that exists.

    The process gets SIGTERM when this process ends, however that happens.
    """
    arguments = [*words, "--run-directory", str(run), "--log.no-progress"]
    command = [sys.executable, "-m", "pipeline.fit", *arguments]
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def end_with_parent() -> None:
        libc.prctl(_DIE_WITH_PARENT, signal.SIGTERM)
        if os.getppid() != parent:  # it has ended already
            os._exit(1)

    with log_path(run).open("ab") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            preexec_fn=end_with_parent,  # one thread, no TensorFlow
            start_new_session=True,  # Ctrl-C is handled by the sweep
        )
    return Trial(number, RunDirectory(run), process, device)
