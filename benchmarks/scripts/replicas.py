"""Compares the training speeds of two replicas and one.

    python benchmarks/scripts/replicas.py [ROUNDS]

The model is `convnet` on generated images of CIFAR-10's shape, batch 128, float32. Only
ratios within one run are meaningful on a shared machine. Prints the median, quartiles,
minimum and maximum of these ratios. `python -m benchmarks.scripts.bench` compares the
two engines.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

BATCH = 128
STEPS = 48  # starting to train takes as long as one step


def prepare(replicas: int) -> tuple:
    """Returns (machine, model, batches)."""
    import numpy as np
    import tensorflow as tf

    from pipeline.config import command_line, registry
    from pipeline.data import batching, example_store, splits
    from pipeline.runtime import environment
    from pipeline.training.model_builder import build

    settings = command_line.recipe("cifar10_convnet").changed(
        runtime={"replicas": replicas}, train={"batch_size": BATCH, "epochs": 1}
    )
    machine = environment.start(settings.runtime)
    generator, count = np.random.default_rng(0), BATCH * STEPS
    columns = {
        "id": tf.range(count, dtype=tf.int64),
        "image": tf.constant(generator.integers(0, 256, (count, 32, 32, 3), np.uint8)),
        "label": tf.constant(generator.integers(0, 10, count)),
    }
    split = splits.Split(example_store.MemoryStore(columns), np.arange(count))
    metadata = {"class_names": [str(n) for n in range(10)], "image_shape": [32, 32, 3]}
    task = registry.load("tasks", "image_classification")(metadata)
    batches = batching.training(split, settings.train, 0)
    model = build(task, settings, machine, batches)
    model.steps_per_execution = 2
    return machine, model, batches


def speed(machine: Any, model: Any, batches: Any) -> float:
    """Trains for all steps; returns the images per second."""
    from pipeline.config import registry

    with machine.strategy.scope():
        start = time.monotonic()
        registry.load("engines", "gradient_tape")(model, batches, None, [])
        return BATCH * batches.last_step / (time.monotonic() - start)


def replicas(rounds: int = 5) -> None:
    """Compares one replica, two replicas, and two independent processes.

    Each measurement runs in a new process, because a process cannot change its cores
    and devices. Each replica has one core: its operations do not use the other
    replica's core. Two independent processes running at the same time show the highest
    possible throughput.
    """
    alone = {**os.environ, "TF_NUM_INTRAOP_THREADS": "1"}
    names = ("1 on 1 core", "2 on 2 cores", "1 on 1 core, two processes")
    measured: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for values, jobs in zip(
            measured.values(),
            ([(1, "0")], [(2, "01")], [(1, "0"), (1, "1")]),
            strict=True,
        ):
            words = [
                [sys.executable, __file__, "child", str(n), cores] for n, cores in jobs
            ]
            children = [
                subprocess.Popen(w, stdout=subprocess.PIPE, env=alone) for w in words
            ]
            outputs = [child.communicate()[0] for child in children]
            values.append(sum(json.loads(out.splitlines()[-1]) for out in outputs))
    one, two, apart = measured.values()
    report(
        "2 on 2 cores / 1 on 1 core",
        [b / a for a, b in zip(one, two, strict=True)],
        measured,
    )
    report(
        "two processes / 1 on 1 core",
        [b / a for a, b in zip(one, apart, strict=True)],
        {},
    )


def child(count: str, cores: str) -> None:
    """Runs one measurement after four steps that trace; `cores` are indices of allowed
    cores.
    """
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [allowed[int(place)] for place in cores])
    machine, model, batches = prepare(int(count))
    speed(machine, model, dataclasses.replace(batches, last_step=4))
    print(json.dumps(speed(machine, model, batches)))


def report(name: str, ratios: list[float], measured: dict[str, list[float]]) -> None:
    """Prints the spread of the ratios and the median of each measurement."""
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    spread = (
        f"half in {low:.3f} to {high:.3f}, all in {min(ratios):.3f} to"
        f" {max(ratios):.3f}"
    )
    print(f"{name}: {median:.3f} ({spread}, {len(ratios)} rounds)")
    for each, values in measured.items():
        print(f"  {each}: {statistics.median(values):,.0f} images/s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
    else:
        replicas(*map(int, sys.argv[1:]))
