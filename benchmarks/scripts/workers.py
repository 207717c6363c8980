"""Compares two workers on this machine with one: steps, bytes, start, a lost worker.

    unshare --net sh -c 'ip link set lo up; exec "$0" "$@"' \
        python benchmarks/scripts/workers.py [ROUNDS [steps | lost]]

`steps` trains networks of several sizes on generated images with two processes, each on
one core and with batches of its own: as the two workers of a cluster, and as two runs
of one worker, in interleaved rounds. It prints medians and ranges of the time of a
step, of the bytes that go over the loopback interface in a step (only the workers use
that of the network namespace in which `unshare` starts them), and of the time from the
command to the end of the first call; and the size and time of a checkpoint.

`lost` trains `digits` with two workers, kills one with SIGKILL, and prints
how long the other takes to end, and the same command to train again.
"""

import dataclasses
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BATCH = 64
STEPS = 32
REPEATS = 3
# Name -> model and options. The gradients of `mlp` have 3.4 and 28 MB.
MODELS = {
    "convnet": ("convnet", {}),
    "mlp of 256": ("mlp", {"units": [256, 256]}),
    "mlp of 1,536": ("mlp", {"units": [1536, 1536]}),
}
_REPOSITORY = Path(__file__).parents[2]
_FIT = (
    "-m pipeline.fit digits --model.name tiny --train.epochs 100000"
    " --train.steps-per-execution 5 --train.checkpoint-minutes 0.05 --run-directory run"
)


def compare(rounds: int) -> None:
    """Prints a line for each network and number of workers."""
    ways: dict[str, list[dict]] = {"two workers": [], "two runs": []}
    for _ in range(rounds):
        ways["two workers"] += _run(_configs())
        ways["two runs"] += _run([None, None])
    for way, results in ways.items():
        starts = spread([result["start"] for result in results])
        seconds = spread([result["start_cpu"] for result in results])
        print(f"{way}: {starts} s to the first call, {seconds} s of CPU time")
    for name in MODELS:
        models = {
            way: [result[name] for result in results] for way, results in ways.items()
        }
        first = models["two workers"][0]
        print(
            f"{name}: {first['parameters']:,} parameters, gradients of"
            f" {first['gradients']:,} bytes"
        )
        for way, results in models.items():
            steps = spread([ms for result in results for ms in result["step"]])
            cpu = spread([ms for result in results for ms in result["step_cpu"]])
            print(f"  {way}: {steps} ms per step, {cpu} ms of CPU time per worker")
        traffic = spread([result["bytes"] for result in models["two workers"]], 0)
        print(f"  two workers: {traffic} bytes per step")
        saves = spread([result["save"] for result in models["two runs"]])
        cpu = spread([result["save_cpu"] for result in models["two runs"]])
        print(
            f"  checkpoint: {first['checkpoint']:,} bytes, {saves} ms, {cpu} ms of CPU"
            " time"
        )


def spread(values: list[float], digits: int = 1) -> str:
    """The median, and the range in parentheses."""
    numbers = statistics.median(values), min(values), max(values)
    middle, low, high = (f"{number:,.{digits}f}" for number in numbers)
    return f"{middle} ({low} to {high})"


def _configs() -> list[str]:
    """TF_CONFIG of two workers of this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    hosts = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return [
        json.dumps(
            {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
        )
        for index in range(2)
    ]


def _environment(config: str | None) -> dict[str, str]:
    paths = filter(None, (str(_REPOSITORY), os.environ.get("PYTHONPATH")))
    # One thread: an operation of a worker does not use the core of the other.
    more = {"PYTHONPATH": os.pathsep.join(paths), "TF_NUM_INTRAOP_THREADS": "1"}
    if config:
        more["TF_CONFIG"] = config
    return {**os.environ, **more}


def _run(configs: Sequence[str | None]) -> list[dict]:
    """Measures in a process for each config, all at the same time."""
    children = []
    for core, config in enumerate(configs):
        words = [sys.executable, __file__, "child", str(core), str(time.monotonic())]
        child = subprocess.Popen(
            words, stdout=subprocess.PIPE, env=_environment(config)
        )
        children.append(child)
    outputs = [child.communicate()[0] for child in children]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def child(core: str, started: str) -> None:
    """Trains each network, and prints what was measured as JSON."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [allowed[int(core)]])

    from pipeline.config import command_line
    from pipeline.runtime import cluster, environment

    workers = cluster.read()
    count = len(workers.workers) if workers else 1
    settings = command_line.recipe("cifar10_convnet").changed(
        train={"batch_size": BATCH * count, "epochs": 1}
    )
    machine = environment.start(settings.runtime, workers)
    result: dict = {}
    for name, (model, options) in MODELS.items():
        changed = settings.changed(model={"name": model, "options": options})
        with machine.strategy.scope():
            engine = _prepare(changed, machine)
            engine(last_step=4)  # the first call traces
            result.setdefault("start", time.monotonic() - float(started))
            result.setdefault("start_cpu", time.process_time())
            result[name] = _measure(engine)
    print(json.dumps(result))


def _prepare(settings: Any, machine: Any) -> Callable[..., Any]:
    """A function that trains a network, from the first step on."""
    import numpy as np
    import tensorflow as tf

    from pipeline.config import registry
    from pipeline.data import batching, example_store, splits
    from pipeline.training.model_builder import build

    generator = np.random.default_rng(0)
    images = settings.train.batch_size * STEPS
    columns = {
        "id": tf.range(images, dtype=tf.int64),
        "image": tf.constant(generator.integers(0, 256, (images, 32, 32, 3), np.uint8)),
        "label": tf.constant(generator.integers(0, 10, images)),
    }
    split = splits.Split(example_store.MemoryStore(columns), np.arange(images))
    metadata = {"class_names": [str(n) for n in range(10)], "image_shape": [32, 32, 3]}
    task = registry.load("tasks", "image_classification")(metadata)
    batches = batching.training(split, settings.train, 0)
    model = build(task, settings, machine, batches)
    model.steps_per_execution = 4
    engine = registry.load("engines", "gradient_tape")

    def train(last_step: int = STEPS) -> Any:
        engine(model, dataclasses.replace(batches, last_step=last_step), None, [])
        return model

    return train


def _measure(train: Callable[..., Any]) -> dict:
    from pipeline.training.checkpoints import Checkpoints

    steps, cpu_times = [], []
    before = _loopback_bytes()
    for _ in range(REPEATS):
        begin, cpu = time.monotonic(), time.process_time()
        model = train()
        steps.append(1000 * (time.monotonic() - begin) / STEPS)
        cpu_times.append(1000 * (time.process_time() - cpu) / STEPS)
    traffic = (_loopback_bytes() - before) / STEPS / REPEATS
    with tempfile.TemporaryDirectory() as folder:
        begin, cpu = time.monotonic(), time.process_time()
        Checkpoints(model.state, Path(folder)).save(1, {})
        save = 1000 * (time.monotonic() - begin)
        save_cpu = 1000 * (time.process_time() - cpu)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
    sizes = [
        variable.value.shape.num_elements() for variable in model.trainable_weights
    ]
    return {
        "parameters": sum(sizes),
        "gradients": 4 * sum(sizes),
        "step": steps,
        "step_cpu": cpu_times,
        "bytes": traffic,
        "save": save,
        "save_cpu": save_cpu,
        "checkpoint": size,
    }


def _loopback_bytes() -> int:
    """What the loopback interface of this network namespace has carried."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    return 0


def lose_a_worker(rounds: int) -> None:
    """Prints the seconds that a lost worker takes."""
    ends: list[float] = []
    restarts: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            _start_and_kill(folder, ends, restarts)
    print(f"from SIGKILL to the end of the other worker: {spread(ends)} s")
    print(f"from the same command to the next epoch: {spread(restarts)} s")


def _start_and_kill(folder: str, ends: list[float], restarts: list[float]) -> None:
    workers = _fit(folder)
    _next_epoch(workers[0])
    begin = time.monotonic()
    workers[1].kill()
    workers[0].communicate()
    ends.append(time.monotonic() - begin)
    if workers[0].returncode != 5:
        sys.exit(f"the exit code is {workers[0].returncode}, not 5")
    workers[1].wait()
    begin = time.monotonic()
    workers = _fit(folder)
    _next_epoch(workers[0])
    restarts.append(time.monotonic() - begin)
    for worker in workers:
        worker.kill()
        worker.communicate()


def _fit(folder: str) -> list[subprocess.Popen]:
    return [
        subprocess.Popen(
            [sys.executable, *_FIT.split()],
            cwd=folder,
            env=_environment(config),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for config in _configs()
    ]


def _next_epoch(chief: subprocess.Popen) -> None:
    for line in chief.stdout or ():
        if line.startswith("epoch"):
            return
    sys.exit("the chief ended before an epoch")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
    else:
        rounds = int((*sys.argv[1:], "5")[0])
        parts = sys.argv[2:] or ["steps", "lost"]
        if "steps" in parts:
            compare(rounds)
        if "lost" in parts:
            lose_a_worker(rounds)
