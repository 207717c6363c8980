"""Measures the input pipeline: memory, speed, and its effect on training speed.

    python benchmarks/data.py memory    # peak resident memory at 10 times the data, disk and none
    python benchmarks/data.py feed      # 224-pixel JPEGs: from a cache / decoded in each epoch
    python benchmarks/data.py step      # convnet on CIFAR-10 / the same step on one resident batch

`memory` and `feed` create JPEG files in a temporary directory; `step` reads CIFAR-10 from
`$TFDS_DATA_DIR`.
"""

import dataclasses
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from speed import report

SIDE, BATCH = 224, 64


def photographs(directory: Path, count: int, distinct: int = 500) -> None:
    """Writes `count` JPEG files of two classes (smooth noise, 20 kB); some are hard links."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    for number in range(count):
        path = directory / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number >= distinct:
            path.hardlink_to(directory / "ab"[number % 2] / f"{number % distinct}.jpg")
            continue
        coarse = Image.fromarray(generator.integers(0, 256, (56, 56, 3), np.uint8))
        coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path, quality=90)


def prepared(directory: Path, kind: str, epochs: int = 1) -> object:
    """Returns the training batches of a directory of images, read through the given cache."""
    from pipeline.config import command_line
    from pipeline.data import batching, dataset
    from pipeline.runtime import environment

    settings = command_line.recipe("digits").changed(
        source={"name": "folder", "path": str(directory)},
        data={
            "cache": kind, "cache_directory": str(directory.parent / "cache"),
            "validation": 0.1, "test": 0.0, "augment": {},
        },
        train={"batch_size": BATCH, "epochs": epochs},
    )  # fmt: skip
    environment.start(settings.runtime)
    return batching.training(dataset.load(settings).splits["train"], settings.train, 0)


def memory(count: int = 1000) -> None:
    """Compares the peak memory of reading `count` images and 10 times as many.

    The number of batches is the same (ten epochs and one epoch): the number of batches in flight is
    random, and a larger number of batches reaches a higher peak regardless of the data.
    """
    for kind in ("disk", "none"):
        peaks = {}
        for times in (1, 10):
            with tempfile.TemporaryDirectory() as directory:
                photographs(Path(directory, "photographs"), times * count)
                words = [sys.executable, __file__, "child", directory, kind, str(10 // times)]
                # The second run reuses the disk cache of the first one.
                pipe = subprocess.PIPE
                runs = [subprocess.run(words, stdout=pipe, text=True, check=True) for _ in "12"]
                peaks[times] = [json.loads(run.stdout.splitlines()[-1]) for run in runs]
        for name, one, ten in zip(("first run", "second"), peaks[1], peaks[10], strict=True):
            print(
                f"{kind}, {name}: {one / 1e6:,.0f} MB for {count:,} images, "
                f"{ten / 1e6:,.0f} MB for {10 * count:,}: {ten / one:.3f}", flush=True
            )  # fmt: skip


def child(directory: str, kind: str, epochs: str) -> None:
    """Loads, splits and reads some epochs; prints the peak resident memory in bytes.

    Runs no network, whose activations would hide the memory used by the input pipeline.
    """
    pace(prepared(Path(directory, "photographs"), kind, int(epochs)).dataset, BATCH)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def feed(count: int = 1500, rounds: int = 5) -> None:
    """Compares the speeds of reading an epoch of batches, without training."""
    with tempfile.TemporaryDirectory() as directory:
        photographs(Path(directory, "photographs"), count)
        kinds = {
            kind: prepared(Path(directory, "photographs"), kind)
            for kind in ("none", "disk", "memory")
        }
        measured = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, batches in kinds.items():
                measured[kind].append(pace(batches.dataset, BATCH))
    for kind in ("disk", "memory"):
        pairs = zip(measured[kind], measured["none"], strict=True)
        report(f"{kind} / decoding", [a / b for a, b in pairs], {})
    report(
        "disk / memory",
        [a / b for a, b in zip(measured["disk"], measured["memory"], strict=True)],
        measured,
    )


def pace(dataset: Iterator, batch: int) -> float:
    """Returns the images per second."""
    start = time.monotonic()
    number = sum(1 for _ in dataset)
    return batch * number / (time.monotonic() - start)


def step(rounds: int = 12, steps: int = 40) -> None:
    """Compares a shorter run of the recipe with the same compiled step on one resident batch."""
    import tensorflow as tf

    from pipeline.config import command_line
    from pipeline.data import batching, dataset
    from pipeline.runtime import environment
    from pipeline.training.model_builder import build

    with tempfile.TemporaryDirectory() as cache:
        settings = command_line.recipe("cifar10_convnet").changed(
            train={"epochs": 1, "steps": steps}, data={"cache_directory": cache}
        )
        machine = environment.start(settings.runtime)
        kinds = {}
        for kind in ("memory", "disk"):
            loaded = dataset.load(settings.changed(data={"cache": kind}))
            kinds[kind] = batching.training(loaded.splits["train"], settings.train, 0)
        first = next(iter(kinds["memory"].tickets(0)))
        resident = tf.data.Dataset.from_tensors(first).repeat()
        kinds["resident"] = dataclasses.replace(
            kinds["memory"], tickets=lambda first_step, share: resident.take(steps - first_step)
        )
        model = build(loaded.task, settings, machine, kinds["memory"])
        model.steps_per_execution = 2
        clocks = {"wall time": time.monotonic, "CPU time": time.process_time}
        measured = {clock: {kind: [] for kind in kinds} for clock in clocks}
        for number in range(rounds + 1):  # the first round traces
            for kind in [*kinds][number % 3 :] + [*kinds][: number % 3]:
                speeds = trained(machine, model, kinds[kind], settings.train.engine, clocks)
                for clock, speed in speeds.items():
                    measured[clock][kind] += [speed] * bool(number)
    for clock, speeds in measured.items():
        for kind in ("memory", "disk"):
            pairs = zip(speeds[kind], speeds["resident"], strict=True)
            report(f"{kind} / resident, by {clock}", [a / b for a, b in pairs], {})


def trained(
    machine: object, model: object, batches: object, engine: str, clocks: dict[str, Callable]
) -> dict[str, float]:
    """Trains for all steps; returns the images per second, by clock."""
    from pipeline.config import registry

    with machine.strategy.scope():
        start = {name: clock() for name, clock in clocks.items()}
        registry.load("engines", engine)(model, batches, None, [])
        images = batches.batch_size * batches.last_step
        return {name: images / (clock() - start[name]) for name, clock in clocks.items()}


COMMANDS: dict[str, Callable] = {"memory": memory, "feed": feed, "step": step}

if __name__ == "__main__":
    command, *words = sys.argv[1:] or ["feed"]
    if command == "child":
        child(*words)
    else:
        COMMANDS[command](*map(int, words))
