"""Starts of several processes at once: `python races.py RACES` prints JSON.

The processes of a race are forked without TensorFlow, which takes milliseconds. They start
together, and the winner keeps its lock until all have tried.
"""

import json
import os
import signal
import sys
from pathlib import Path

from pipeline.config import registry
from pipeline.runtime import run_directory
from pipeline.utils import files, temp_files
from pipeline.utils.errors import UsageError

_TIMEOUT = 60  # seconds after which a hanging race ends


def race(count, attempt, killed=False):
    """Runs `attempt(number, done)` in `count` processes; returns their results.

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
    return told


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


def main(races):
    config = registry.load("recipes", "digits")()
    locks = []
    for number in range(races):
        # Three in each directory: two processes are killed.
        folder = Path(f"locks/{number - number % 3}")
        attempt = take_lock(config.changed(run_directory=folder))
        told = race(2 + number % 3, attempt, killed=number % 3 < 2)
        locks.append(told)
    runs = race(8, make_run(config))
    versions = race(8, publish(Path("models")))
    print(json.dumps({"locks": locks, "runs": runs, "versions": versions}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
