"""Ratios of speed on this machine: the two engines, and two replicas against one.

    python benchmarks/speed.py engines     # gradient_tape / model_fit, in turn in one process
    python benchmarks/speed.py replicas    # 2 replicas on 2 cores / 1 replica on 1 core

`convnet` on generated images of CIFAR-10's shape, batch 128, float32. Only ratios of one run mean
anything on a shared machine; the spread is that of the single measurements.
"""

import json
import os
import statistics
import subprocess
import sys
import time

BATCH, STEPS = 128, 24
ENGINES = ("model_fit", "gradient_tape")


def prepare(replicas: int) -> tuple:
    """(machine, model, batches) of `STEPS` steps."""
    import numpy as np
    import tensorflow as tf

    from pipeline import command_line, runtime, shelf, stream
    from pipeline.build import build

    settings = command_line.recipe("cifar10_convnet").changed(
        runtime={"replicas": replicas}, train={"batch_size": BATCH, "epochs": 1}
    )
    machine = runtime.start(settings.runtime)
    generator, count = np.random.default_rng(0), BATCH * STEPS
    columns = {
        "id": tf.range(count, dtype=tf.int64),
        "image": tf.constant(generator.integers(0, 256, (count, 32, 32, 3), np.uint8)),
        "label": tf.constant(generator.integers(0, 10, count)),
    }
    split = stream.Split(columns, tf.range(count, dtype=tf.int64))
    facts = {"class_names": [str(n) for n in range(10)], "image_shape": [32, 32, 3]}
    task = shelf.take("tasks", "image_classification")(facts)
    batches = stream.training(split, settings.train, 0)
    model = build(task, settings, machine, batches)
    model.steps_per_execution = 2
    return machine, model, batches


def speed(
    machine: object, model: object, batches: object, engine: str, clock: object = time.monotonic
) -> float:
    """Images per second of all steps, by a clock."""
    from pipeline import shelf

    with machine.strategy.scope():
        start = clock()
        shelf.take("engines", engine)(model, batches, None, [])
        return BATCH * STEPS / (clock() - start)


def engines(rounds: int = 9) -> None:
    """Both engines in turn, on one model and one trace; by the processor time of this process,
    which another process on the machine changes least."""
    prepared = prepare(1)
    for engine in ENGINES:
        speed(*prepared, engine)
    measured = {engine: [] for engine in ENGINES}
    for number in range(rounds):
        for engine in ENGINES if number % 2 else reversed(ENGINES):
            measured[engine].append(speed(*prepared, engine, time.process_time))
    pairs = zip(measured["gradient_tape"], measured["model_fit"], strict=True)
    report("gradient_tape / model_fit", [tape / fit for tape, fit in pairs], measured)


def replicas(rounds: int = 5) -> None:
    """A process for each measurement, since a process keeps its cores and devices."""
    measured = {"1 on 1 core": [], "2 on 2 cores": [], "1 on 2 cores": []}
    for _ in range(rounds):
        for name, (count, cores) in zip(measured, ((1, 1), (2, 2), (1, 2)), strict=True):
            words = [sys.executable, __file__, "child", str(count), str(cores)]
            out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            measured[name].append(json.loads(out.splitlines()[-1]))
    one, two, both = measured.values()
    report("2 on 2 cores / 1 on 1 core", [b / a for a, b in zip(one, two, strict=True)], measured)
    report("2 on 2 cores / 1 on 2 cores", [b / a for a, b in zip(both, two, strict=True)], {})


def child(count: int, cores: int) -> None:
    """One measurement: the better of two, after one that traces."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    prepared = prepare(count)
    print(json.dumps(max([speed(*prepared, "gradient_tape") for _ in range(3)][1:])))


def report(name: str, ratios: list[float], measured: dict[str, list[float]]) -> None:
    """Median and spread of the ratios, and the medians behind them."""
    middle = statistics.median(ratios)
    print(f"{name}: {middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} rounds)")
    for each, values in measured.items():
        print(f"  {each}: {statistics.median(values):,.0f} images/s")


if __name__ == "__main__":
    command, *numbers = sys.argv[1:] or ["engines"]
    {"engines": engines, "replicas": replicas, "child": child}[command](*map(int, numbers))
