"""First request to an exported version after its warm-up, relative to later requests.

    python benchmarks/scripts/serving.py [ROUNDS]

Uses the loader and session of the server. The model is an untrained `convnet` on random
images, 8x8x1 (digits) and 32x32x3 (CIFAR-10), in float32, on the CPU. `python -m
benchmarks.scripts.bench` measures latency and throughput.
"""

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="2")
SHAPES = ((8, 8, 1), (32, 32, 3))
STEADY = 20  # requests of each kind after the first one


def images(count: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns random pixels, uint8 (count, height, width, channels)."""
    return np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)


@contextmanager
def exported(shape: tuple[int, int, int]) -> Iterator[Path]:
    """Yields the directory of a complete export."""
    import tensorflow as tf

    from pipeline.config import command_line, registry
    from pipeline.data import example_store, splits
    from pipeline.export import savedmodel
    from pipeline.training.model_builder import network

    config = command_line.recipe("digits").changed(export={"batch_sizes": (1, 8, 64)})
    metadata = {"class_names": [str(n) for n in range(10)], "image_shape": list(shape)}
    task = registry.load("tasks", "image_classification")(metadata)
    model = network(task, config.model, "float32")
    count = 64
    columns = {
        "id": tf.range(count, dtype=tf.int64),
        "image": tf.constant(images(count, shape)),
        "label": tf.range(count, dtype=tf.int64) % 10,
    }
    split = splits.Split(example_store.MemoryStore(columns), np.arange(count))
    with tempfile.TemporaryDirectory() as directory:
        savedmodel.write(
            Path(directory), model, task, config, split, metrics={}, trained={}
        )
        yield Path(directory)


def first(rounds: int = 10) -> None:
    """Starts a process per round that loads, warms up (except twice) and queries the
    version.
    """
    for shape in SHAPES:
        with exported(shape) as directory:
            for warmed in ("warm", "cold"):
                measured: dict[str, list[float]] = {}
                for _ in range(rounds if warmed == "warm" else 2):
                    words = [sys.executable, __file__, "child", str(directory), warmed]
                    out = subprocess.run(
                        words, check=True, capture_output=True, text=True
                    ).stdout
                    for what, ratio in json.loads(out.splitlines()[-1]).items():
                        measured.setdefault(what, []).append(ratio)
                for what, ratios in measured.items():
                    report(
                        f"{name_of(shape)}: {warmed}, first / median of next, {what}",
                        ratios,
                    )


def child(directory: str, warmed: str) -> None:
    """Runs one round in a process without TensorFlow's Python package,
    like a server.
    """
    from pipeline.export import proof, warmup
    from pipeline.serving.savedmodel_session import Session

    session = Session(Path(directory))
    if warmed == "warm":
        warmup.check(session, Path(directory))
    requests = {
        f"{signature} {size}": (
            signature,
            {n: v[-size:] for n, v in sides["inputs"].items()},
        )
        for signature, sides in proof.read_golden(
            Path(directory) / proof.GOLDEN
        ).items()
        for size in (1, 8, 64)
    }
    took: dict[str, list[float]] = {what: [] for what in requests}
    # Alternate, so that later requests find the CPU caches in the same state as the
    # first one.
    for _ in range(1 + STEADY):
        for what, request in requests.items():
            took[what].append(seconds(functools.partial(session.run, *request)))
    print(
        json.dumps({what: t[0] / statistics.median(t[1:]) for what, t in took.items()})
    )


def seconds(call: Callable[[], Any]) -> float:
    """Returns the wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def name_of(shape: tuple[int, ...]) -> str:
    """Returns a shape as text, such as 8x8x1."""
    return "x".join(map(str, shape))


def report(name: str, ratios: list[float]) -> None:
    """Prints the median and the spread of the ratios."""
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    spread = (
        f"half in {low:.3f} to {high:.3f}, all in {min(ratios):.3f} to"
        f" {max(ratios):.3f}"
    )
    print(f"{name}: {median:.3f} ({spread}, {len(ratios)} rounds)", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
    else:
        first(*map(int, sys.argv[1:]))
