"""Concurrent starts, and starts that are killed: `python races.py RACES CYCLES` prints JSON.

The processes of a race are forked without TensorFlow, which takes milliseconds. They start
together, and the winner keeps its lock until all have tried.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

from pipeline.config import registry
from pipeline.runtime import run_directory
from pipeline.utils import files, temp_files
from pipeline.utils.errors import UsageError

_TIMEOUT = 60  # seconds after which a hanging race ends


def race(count, attempt, killed=False):
    """Runs `attempt(number, done)` in `count` processes; returns their ids and results.

    An attempt calls `done(result)`, which returns once all attempts have a result. Then the
    processes end, or are killed.
    """
    start, release = os.pipe(), os.pipe()
    results = [os.pipe() for _ in range(count)]
    children = []
    for number in range(count):
        children.append(os.fork())
        if children[-1]:
            continue
        signal.alarm(_TIMEOUT)
        os.close(start[1])
        os.close(release[1])

        def done(result, number=number):
            with os.fdopen(results[number][1], "w") as file:
                file.write(json.dumps(result) + "\n")
            os.read(release[0], 1)

        os.read(start[0], 1)
        try:
            attempt(number, done)
        finally:
            os._exit(0)
    os.close(start[1])  # starts all
    told = []
    for reader, writer in results:
        os.close(writer)
        with os.fdopen(reader) as file:
            told.append(json.loads(file.readline()))
    for child in children if killed else ():
        os.kill(child, signal.SIGKILL)
    os.close(release[1])
    for child in children:
        os.waitpid(child, 0)
    for handle in (start[0], release[0]):
        os.close(handle)
    return children, told


def take_lock(config):
    def attempt(number, done):
        try:
            with run_directory.opened(config):
                done(None)
        except UsageError as error:
            done(str(error))

    return attempt


def make_run(config):
    def attempt(number, done):
        with run_directory.opened(config) as run:
            done(str(run))

    return attempt


def publish(parent):
    def attempt(number, done):
        folder = temp_files.folder(parent)
        (folder / "saved_model.pb").write_text(str(number))
        temp_files.sweep(parent)  # must keep the directories of the others
        done(str(files.publish(folder, parent)))

    return attempt


def work(config, progress):
    """Publishes and prunes checkpoints and writes results as a run does, until it is killed."""
    with run_directory.opened(config) as run:
        models = run_directory.export_directory(config)
        for path in (run.metadata, run.source, run.splits):
            path.touch()
        for step in range(1, 10**9):
            for parent, target in ((run.checkpoints, f"step-{step:08d}"), (models, None)):
                folder = temp_files.folder(parent)
                os.write(progress, b".")
                (folder / "whole").write_bytes(b"w" * 10_000)
                os.write(progress, b".")
                if target and not (parent / target).exists():
                    files.publish_as(folder, parent / target)
                else:
                    temp_files.remove(folder)
            files.write_json(run.result, {"step": step})
            os.write(progress, b".")
            for path in sorted(run.checkpoints.glob("step-*"))[:-2]:
                temp_files.remove(path)


def killed(config, operations):
    """Kills a process at `work` after a number of operations."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(_TIMEOUT)
        work(config, writer)
    os.close(writer)
    for _ in range(operations):
        os.read(reader, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)


def cycles(count, config):
    """Kills `count` processes; counts their temporary files, and checks those of the last start."""
    generator = random.Random(5)
    most = 0
    for _ in range(count):
        killed(config, generator.randrange(1, 30))
        found = [path.name for path in Path().rglob(".*") if temp_files.is_ours(path.name)]
        most = max(most, len(found))
    with run_directory.opened(config) as run:
        torn = [p for p in run.checkpoints.glob("step-*") if len(os.listdir(p)) != 1]
    left = [path.name for path in Path().rglob(".*") if temp_files.is_ours(path.name)]
    kept = len(list(run.checkpoints.glob("step-*")))
    return {"most": most, "left": left, "torn": list(map(str, torn)), "kept": kept}


def main(races, killings):
    config = registry.load("recipes", "digits")()
    locks = []
    for number in range(races):
        # Three in each directory: two processes are killed, so that a stale lock remains.
        folder = Path(f"locks/{number - number % 3}")
        attempt = take_lock(config.changed(run_directory=folder))
        children, told = race(2 + number % 3, attempt, killed=number % 3 < 2)
        stale = (folder / ".lock").read_text()
        locks.append({"pids": children, "told": told, "stale": stale})
    _, runs = race(8, make_run(config))
    _, versions = race(8, publish(Path("models")))
    found = {"locks": locks, "runs": runs, "versions": versions}
    if killings:
        found["cycles"] = cycles(killings, config.changed(run_directory="killed"))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
