"""Measures whether repeated runs are identical, memory growth, and the cost of
checkpoints.

    python -m benchmarks.scripts.endurance MODE

MODE is `digests 20` (each engine, 1 and 2 replicas, float32 and bfloat16), `steps` (the
memory of one run over 4,500 steps, by engine), `fits 50` (the memory of a process that
trains 50 runs, by engine), or `saves` (the time spent on checkpoints at the default
interval).
"""

import collections
import gc
import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil

from pipeline.utils.errors import run_command
from tests.nightly.fault_injection import harness, reference

ENGINES = ("model_fit", "gradient_tape")
SMALL = """digits --model.name tests.nightly.fault_injection.reference.subject
    --data.limit 180 --train.batch-size 8 --train.epochs 3 --train.ema 0.9 --train.global-clipnorm 1
    --data.augment --log.no-progress --export.no-enabled --run-directory run"""


def digests(repeats: int = 20) -> None:
    """Counts the distinct digests of repeated runs: weights, optimizer, history,
    scalars.
    """
    cells = itertools.product(ENGINES, (1, 2), ("float32", "mixed_bfloat16"))
    for engine, replicas, precision in cells:
        words = [
            *SMALL.split(),
            "--train.engine",
            engine,
            "--runtime.replicas",
            str(replicas),
        ]
        found: collections.Counter[str] = collections.Counter()
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as directory:
                place = Path(directory)
                result = harness.run(
                    "pipeline.fit", [*words, "--runtime.precision", precision], place
                )
                if result.code:
                    raise SystemExit(result.output)
                left = json.dumps(reference.evidence(place / "run"), sort_keys=True)
            found[hashlib.sha256(left.encode()).hexdigest()] += 1
        print(
            f"{engine} {replicas} {precision}: {len(found)} distinct digests in"
            f" {repeats} runs",
            flush=True,
        )


def steps(count: int = 4500) -> None:
    """Measures resident memory at the end of each epoch, including validation and
    checkpoints.

    Reports the slope of the running maximum over the last two thirds: before that, the
    heap grows to its final size. The maximum is used because the kernel may reclaim
    pages temporarily.
    """
    for engine in ENGINES:
        with tempfile.TemporaryDirectory() as directory:
            words = (
                f"digits --train.steps {count} --train.epochs {count} --train.engine"
                f" {engine}"
            )
            more = "--export.no-enabled --log.no-progress --run-directory run"
            command = [
                sys.executable,
                "-m",
                "pipeline.fit",
                *words.split(),
                *more.split(),
            ]
            run = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL)
            log = Path(directory, "run/log.jsonl")
            memory = psutil.Process(run.pid)
            epochs: list[float] = []
            while run.poll() is None:
                done = (
                    log.read_text(encoding="utf-8").count("\n") if log.exists() else 0
                )
                if done > len(epochs):
                    epochs += [memory.memory_info().rss] * (done - len(epochs))
                time.sleep(0.05)
        each, peaks = count / len(epochs), np.maximum.accumulate(epochs) / 1e6
        late = range(len(epochs) // 3, len(epochs))
        slope = np.polyfit([each * n for n in late], [peaks[n] for n in late], 1)[0]
        first, last = (peaks[n] for n in (late[0], -1))
        print(
            f"{engine}: {1000 * slope:+.2f} MB per 1,000 steps in the last two thirds"
            f" of {count:,} ({first:.0f} to {last:.0f} MB)",
            flush=True,
        )


def fits(count: int = 50) -> None:
    """Measures resident memory after each run of 44 steps in one process, from the
    sixth run on.
    """
    if count < 10:
        raise SystemExit(
            "fits needs at least 10 runs: the first five are not evaluated"
        )
    for engine in ENGINES:
        words = [sys.executable, __file__, "child", engine, str(count)]
        subprocess.run(words, check=True)


def child(engine: str, count: str) -> None:
    """Runs all runs of one engine."""
    from pipeline.fit import fit

    memory, sizes = psutil.Process(), []
    for number in range(int(count)):
        with tempfile.TemporaryDirectory() as directory:
            fit(
                "digits",
                run_directory=Path(directory, "run"),
                train={"epochs": 1, "engine": engine},
                export={"enabled": False},
                log={"progress": False},
                runtime={"seed": number},
            )
        gc.collect()
        sizes.append(memory.memory_info().rss / 1e6)
    slope = np.polyfit(range(len(sizes) - 5), sizes[5:], 1)[0]
    print(
        f"{engine}: {slope:+.2f} MB per run ({sizes[5]:.0f} to {sizes[-1]:.0f} MB)",
        flush=True,
    )


def saves() -> None:
    """Measures the fraction of training time spent in `Checkpoints.save`, over 3,000
    steps.
    """
    from pipeline.fit import fit
    from pipeline.training.checkpoints import Checkpoints
    from pipeline.training.trainer import Trainer

    spent: dict[str, list[float]] = {"saving": [], "training": []}

    def timed(function: Any, name: str) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            start = time.monotonic()
            try:
                return function(*arguments, **more)
            finally:
                spent[name].append(time.monotonic() - start)

        return call

    saving = mock.patch.object(Checkpoints, "save", timed(Checkpoints.save, "saving"))
    training = mock.patch.object(Trainer, "train", timed(Trainer.train, "training"))
    with saving, training, tempfile.TemporaryDirectory() as directory:
        fit(
            "digits",
            run_directory=Path(directory, "run"),
            train={"epochs": 3000, "steps": 3000},
            export={"enabled": False},
            log={"progress": False},
        )
    seconds, total = (sum(spent[name]) for name in ("saving", "training"))
    print(
        f"{len(spent['saving'])} checkpoints, {seconds / total:.2%} of {total:.0f} s of"
        " training"
    )


def main(arguments: list[str]) -> int:
    """Runs the given command."""
    command, *numbers = arguments or ["digests"]
    if command == "child":
        child(*numbers)
    else:
        commands = {"digests": digests, "steps": steps, "fits": fits, "saves": saves}
        commands[command](*map(int, numbers))
    return 0


if __name__ == "__main__":
    run_command(main)
