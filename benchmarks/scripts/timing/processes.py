"""Start-up time and peak memory of whole processes; does not import
TensorFlow itself.
"""

import dataclasses
import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.scripts.timing.rounds import (
    Line,
    MeasurementError,
    Rounds,
    Sample,
    spread,
)
from pipeline.utils import temp_files

SCRIPTS = Path(__file__).parents[1]
"""The directory of the scripts that train with other libraries."""
_REPOSITORY = Path(__file__).parents[3]
_FIT = ("-m", "pipeline.fit", "digits", "--no-progress", "--train.steps")
_IMAGES = 600  # of the smaller data set
INSTALL = "python3 -m venv torch-env && torch-env/bin/pip install torch numpy"


def torch_hint(python: str) -> str:
    """How to install PyTorch; empty if this interpreter has it, or another one is
    given.
    """
    if python or importlib.util.find_spec("torch"):
        return ""
    return f"missing: {INSTALL}; then add --torch-python torch-env/bin/python"


def first_step(context: Any) -> Any:
    """A callback for `--train.callbacks` that ends the process after the first training
    step.
    """
    import keras

    return keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: os._exit(0)
    )


def run_process(*words: object) -> tuple[Sample, str, float]:
    """Runs Python in an empty directory: its time, what it printed, its peak memory in
    MB.

    On Linux, the peak is at least the memory that this process has.
    """
    paths = filter(None, (str(_REPOSITORY), os.environ.get("PYTHONPATH")))
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with temp_files.temporary() as folder, tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, *map(str, words)]
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=output, stderr=output
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:  # Ctrl-C
            process.kill()
            raise
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read()
    if process.returncode:
        raise MeasurementError((said.strip() or "no message").splitlines()[-1])
    return (
        Sample(1, wall, usage.ru_utime + usage.ru_stime),
        said,
        usage.ru_maxrss / 1000,
    )


def startup(count: int) -> list[Line]:
    """From the command to the help text, the first step and the end of the export of
    `digits`.
    """
    helps = ("-m", "pipeline.fit", "--help")
    callback = (
        "--train.callbacks",
        f"{__name__}.first_step",
        "--train.steps-per-execution",
        "1",
    )
    runs: dict[str, tuple[object, ...]] = {
        "--help": helps,
        "first step": (*_FIT, "1", "--no-export", *callback),
        "minimal Keras script": (SCRIPTS / "peer_keras.py", "first-step"),
        "60 steps": (*_FIT, "60", "--no-export"),
        "60 steps, export": (*_FIT, "60"),
    }
    calls = {
        name: lambda words=words: run_process(*words)[0] for name, words in runs.items()
    }
    rounds = Rounds("start-up", calls, "first step", count)
    line = functools.partial(rounds.line, unit="s")
    shown = line("--help")
    modules = spread([run_process("-X", "importtime", *helps)[1].count("tensorflow")])
    return [
        rounds.control("s"),
        dataclasses.replace(
            shown, compared="seconds", ratio=shown.value, bound=(0, 0.4)
        ),
        Line(
            "start-up",
            "--help",
            compared="TensorFlow modules",
            ratio=modules,
            bound=(0, 0),
        ),
        line("first step", "first step / minimal Keras script", "time", bound=(0, 1.1)),
        line("minimal Keras script"),
        line("60 steps"),
        line(
            "60 steps, export", "60 steps, export / 60 steps", "seconds", bound=(0, 3)
        ),
    ]


def memory(count: int) -> list[Line]:
    """Peak memory of training on ten times the images, from a disk cache and without a
    cache.

    The number of steps is the same. Small batches, so that both data sets have enough
    to fill all buffers: with four times as many images per batch, the ratio was 1.02 or
    1.06, by chance.
    """
    lines = []
    with temp_files.temporary() as folder:
        for times in (1, 10):
            run_process(
                SCRIPTS / "photographs.py", folder / str(times), times * _IMAGES
            )
        for kind in ("disk", "none"):
            options = (
                "--model.name tiny --validation 0.25 --test 0.25 --no-export --cache"
                f" {kind}"
            )
            words = [*_FIT, "360", "--batch-size", "8", *options.split()]
            words += [
                f"--cache-directory={folder}/cache",
                "--source.name=folder",
                "--source.path",
            ]
            peaks = [
                [run_process(*words, folder / n)[2] for n in ("1", "10")]
                for _ in range(count)
            ]
            peak = spread(ten for _, ten in peaks)
            ratio = spread(ten / one for one, ten in peaks)
            what = f"{10 * _IMAGES:,} / {_IMAGES:,} images"
            bound = (0, 1.05)
            lines.append(
                Line("memory", f"cache {kind}", peak, "MB", None, what, ratio, bound)
            )
    return lines
