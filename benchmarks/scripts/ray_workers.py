"""A short run on two workers of Ray, beside two plain processes.

    python -m benchmarks.scripts.ray_workers [ROUNDS]

Prints, for each round, the seconds of two epochs of `digits` with both, and what Ray
adds. Ray is started before. Needs `ray[train]`.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]
_FIT = "-m pipeline.fit digits --model tiny --optimizer sgd --epochs 2 --no-export"


def plain(folder: Path) -> float:
    """Seconds of two processes that find each other by `TF_CONFIG`."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{free.getsockname()[1]}" for free in (first, second)]
    command = [sys.executable, *_FIT.split(), "--run-directory", str(folder)]
    start = time.perf_counter()
    processes = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": {"worker": addresses}, "task": task})
        environment = {**os.environ, "TF_CONFIG": config}
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        )
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError("a worker failed")
    return time.perf_counter() - start


def with_ray(folder: Path) -> float:
    from pipeline.launch import ray

    start = time.perf_counter()
    ray.fit(
        "digits",
        model="tiny",
        optimizer="sgd",
        epochs=2,
        export={"enabled": False},
        workers=2,
        storage=folder / "storage",
        run_directory=folder / "run",
    )
    return time.perf_counter() - start


def main(rounds: int) -> None:
    """Alternates the two, and prints the median of the differences."""
    os.environ["PYTHONPATH"] = str(_REPOSITORY)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False)
    differences = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            processes = plain(Path(folder, f"plain-{number}"))
            workers = with_ray(Path(folder, f"ray-{number}"))
            differences.append(workers - processes)
            print(
                f"two processes {processes:.1f} s, Ray {workers:.1f} s:"
                f" {differences[-1]:.1f} s more",
                flush=True,
            )
    print(f"median: {statistics.median(differences):.1f} s more")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3)
