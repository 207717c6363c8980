"""Reads 224-pixel JPEGs from each cache, and decodes them.

    python benchmarks/scripts/data.py [IMAGES [ROUNDS]]

The JPEG files are created in a temporary directory. `python -m
benchmarks.scripts.bench` measures the peak memory with ten times the data, and training
relative to the same step on one resident batch.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from photographs import photographs
from replicas import report

SIDE, BATCH = 224, 64


def prepared(directory: Path, kind: str) -> Any:
    """Returns the training batches of a directory of images, read through the given
    cache.
    """
    from pipeline.config import command_line
    from pipeline.data import batching, dataset
    from pipeline.runtime import environment

    settings = command_line.recipe("digits").changed(
        source={"name": "folder", "path": str(directory)},
        data={
            "cache": kind, "cache_directory": str(directory.parent / "cache"),
            "validation": 0.1, "test": 0.0, "augment": {},
        },
        train={"batch_size": BATCH, "epochs": 1},
    )  # fmt: skip
    environment.start(settings.runtime)
    return batching.training(dataset.load(settings).splits["train"], settings.train, 0)


def feed(count: int = 1500, rounds: int = 5) -> None:
    """Compares the speeds of reading an epoch of batches, without training."""
    with tempfile.TemporaryDirectory() as directory:
        photographs(Path(directory, "photographs"), count, SIDE)
        kinds = {
            kind: prepared(Path(directory, "photographs"), kind)
            for kind in ("none", "disk", "memory")
        }
        measured: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, batches in kinds.items():
                measured[kind].append(pace(batches.dataset(0), BATCH))
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


if __name__ == "__main__":
    feed(*map(int, sys.argv[1:]))
