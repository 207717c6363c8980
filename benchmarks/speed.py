"""Ratios of speed on this machine: the two engines, and two replicas against one.

    python benchmarks/speed.py engines     # gradient_tape / model_fit, in turn in one process
    python benchmarks/speed.py replicas    # 2 replicas on 2 cores / 1 replica on 1 core
    (a number after the word: how many rounds)

`convnet` on generated images of CIFAR-10's shape, batch 128, float32. Only ratios of one run mean
anything on a shared machine; printed are their median, quartiles, least and largest.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time

BATCH = 128
STEPS = {"engines": 12, "replicas": 48}  # the start of a training costs as much as one step
ENGINES = ("model_fit", "gradient_tape")


def prepare(replicas: int, steps: int) -> tuple:
    """(machine, model, batches)."""
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
    generator, count = np.random.default_rng(0), BATCH * steps
    columns = {
        "id": tf.range(count, dtype=tf.int64),
        "image": tf.constant(generator.integers(0, 256, (count, 32, 32, 3), np.uint8)),
        "label": tf.constant(generator.integers(0, 10, count)),
    }
    split = splits.Split(example_store.Memory(columns), np.arange(count))
    metadata = {"class_names": [str(n) for n in range(10)], "image_shape": [32, 32, 3]}
    task = registry.load("tasks", "image_classification")(metadata)
    batches = batching.training(split, settings.train, 0)
    model = build(task, settings, machine, batches)
    model.steps_per_execution = 2
    return machine, model, batches


def speed(
    machine: object, model: object, batches: object, engine: str, clock: object = time.monotonic
) -> float:
    """Images per second of all steps, by a clock."""
    from pipeline.config import registry

    with machine.strategy.scope():
        start = clock()
        registry.load("engines", engine)(model, batches, None, [])
        return BATCH * batches.last_step / (clock() - start)


def engines(rounds: int = 31) -> None:
    """Both engines in turn, on one model and one trace; by the processor time of this process,
    which another process on the machine changes least."""
    prepared = prepare(1, STEPS["engines"])
    for engine in ENGINES:
        speed(*prepared, engine)
    measured = {engine: [] for engine in ENGINES}
    for number in range(rounds):
        for engine in ENGINES if number % 2 else reversed(ENGINES):
            measured[engine].append(speed(*prepared, engine, time.process_time))
    pairs = zip(measured["gradient_tape"], measured["model_fit"], strict=True)
    report("gradient_tape / model_fit", [tape / fit for tape, fit in pairs], measured)


def replicas(rounds: int = 5) -> None:
    """Processes of their own for each measurement, since a process keeps its cores and devices.

    One core for each replica: an operation of one does not spread over the other's core. Two
    processes at once that have nothing to do with each other show what the cores allow.
    """
    alone = {**os.environ, "TF_NUM_INTRAOP_THREADS": "1"}
    measured = {"1 on 1 core": [], "2 on 2 cores": [], "1 on 1 core, twice at once": []}
    for _ in range(rounds):
        for values, jobs in zip(
            measured.values(), ([(1, "0")], [(2, "01")], [(1, "0"), (1, "1")]), strict=True
        ):
            words = [[sys.executable, __file__, "child", str(n), cores] for n, cores in jobs]
            children = [subprocess.Popen(w, stdout=subprocess.PIPE, env=alone) for w in words]
            outputs = [child.communicate()[0] for child in children]
            values.append(sum(json.loads(out.splitlines()[-1]) for out in outputs))
    one, two, apart = measured.values()
    report("2 on 2 cores / 1 on 1 core", [b / a for a, b in zip(one, two, strict=True)], measured)
    report("twice at once / 1 on 1 core", [b / a for a, b in zip(one, apart, strict=True)], {})


def child(count: str, cores: str) -> None:
    """One measurement, after four steps that trace; `cores` by their places."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [allowed[int(place)] for place in cores])
    machine, model, batches = prepare(int(count), STEPS["replicas"])
    speed(machine, model, dataclasses.replace(batches, last_step=4), "gradient_tape")
    print(json.dumps(speed(machine, model, batches, "gradient_tape")))


def report(name: str, ratios: list[float], measured: dict[str, list[float]]) -> None:
    """Spread of the ratios, and the medians of what they were made of."""
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    spread = f"half in {low:.3f} to {high:.3f}, all in {min(ratios):.3f} to {max(ratios):.3f}"
    print(f"{name}: {middle:.3f} ({spread}, {len(ratios)} rounds)")
    for each, values in measured.items():
        print(f"  {each}: {statistics.median(values):,.0f} images/s")


if __name__ == "__main__":
    command, *numbers = sys.argv[1:] or ["engines"]
    if command == "child":
        child(*numbers)
    else:
        {"engines": engines, "replicas": replicas}[command](*map(int, numbers))
