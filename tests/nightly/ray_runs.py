"""Runs on a local Ray with two workers: undisturbed, killed, stopped, and refused.

Prints a line `RUN name` before the output of each run, and at the end one line `RESULTS
{...}`.
"""

import contextlib
import hashlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

import psutil
import ray

from pipeline.launch import ray as launch
from pipeline.utils.errors import UsageError

_RUNS = {
    "model": "tiny",
    "optimizer": "sgd",
    "epochs": 8,
    "runtime": {"worker_timeout": 600},
    "train": {"steps_per_execution": 3, "checkpoint_steps": 30},
}


def fit(name, title=None, **changes):
    """A run in the directory of this name, given as a relative path."""
    print("RUN", title or name, flush=True)
    arguments = {**_RUNS, "export": {"enabled": False}, **changes}
    return launch.fit(
        "digits",
        workers=2,
        storage=Path("storage").absolute(),
        run_directory=f"runs/{name}",
        **arguments,
    )


def workers():
    """The processes of the workers, chief first."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name().startswith("ray::RayTrainW"):
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def after_first_checkpoint(name, function):
    """Calls the function in another thread when the run has a checkpoint."""

    def wait():
        while not list(Path("runs", name, "checkpoints").glob("step-*")):
            threading.Event().wait(0.05)
        function()

    threading.Thread(target=wait, daemon=True).start()


def digest(name):
    """Of the log without its times, and of the last checkpoint's variables."""
    import tensorflow as tf

    last = max(Path("runs", name, "checkpoints").glob("step-*"))
    reader = tf.train.load_checkpoint(str(last / "state"))
    digest = hashlib.sha256(last.name.encode())
    for key in sorted(reader.get_variable_to_shape_map()):
        if key != "_CHECKPOINTABLE_OBJECT_GRAPH" and "seconds" not in key:
            value = reader.get_tensor(key)
            digest.update(key.encode())
            digest.update(value if isinstance(value, bytes) else value.tobytes())
    return digest.hexdigest()


def main():
    results = {}
    ray.init(address="local", num_cpus=2, include_dashboard=False)

    run = fit("whole", export={"enabled": True})
    results["whole"] = digest("whole")
    results["test"] = run.test
    results["export"] = str(run.export)

    after_first_checkpoint("killed", lambda: workers()[-1].kill())
    fit("killed")
    results["killed"] = digest("killed")

    after_first_checkpoint("terminated", lambda: workers()[-1].terminate())
    fit("terminated")
    results["terminated"] = digest("terminated")

    after_first_checkpoint("stopped", lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        fit("stopped")
    except KeyboardInterrupt:
        results["workers_left"] = len(workers())
    fit("stopped", "again")
    results["stopped"] = digest("stopped")

    try:  # an error that only the workers find
        fit("refused", runtime={"replicas": 2})
    except UsageError as error:
        results["refused"] = str(error)
    print("RESULTS", json.dumps(results), file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
