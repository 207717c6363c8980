"""Processes that start together: a forkserver without TensorFlow forks them in
milliseconds.
"""

import multiprocessing
import os
import signal
from pathlib import Path

from pipeline.config import registry
from pipeline.runtime import run_directory
from pipeline.serving import repository
from pipeline.utils import locks, temp_files
from pipeline.utils.errors import UsageError

_TIMEOUT = 60  # seconds after which a hanging race ends


def race(count, attempt, folder, killed=False):
    """Results of `attempt(folder, done)` in `count` processes, by process id.

    An attempt calls `done(result)`, which returns once all attempts have a result. Then
    the processes end, or are killed.
    """
    context = multiprocessing.get_context("forkserver")
    barrier, results, stay = (
        context.Barrier(count),
        context.SimpleQueue(),
        context.Event(),
    )
    arguments = (attempt, folder, barrier, results, stay)
    processes = [context.Process(target=_attempt, args=arguments) for _ in range(count)]
    for process in processes:
        process.start()
    found = dict(results.get() for _ in processes)
    if killed:
        for process in processes:
            process.kill()
    else:
        stay.set()
    for process in processes:
        process.join()
    return found


def _attempt(attempt, folder, barrier, results, stay):
    signal.alarm(_TIMEOUT)

    def done(result):
        results.put((os.getpid(), result))
        stay.wait()

    barrier.wait()
    attempt(Path(folder), done)


def take_lock(folder, done):
    config = registry.load("recipes", "digits")().changed(run_directory=folder)
    try:
        with run_directory.open_run(config):
            done(None)
    except UsageError as error:
        done(str(error))


def make_run(folder, done):
    os.chdir(folder)
    with run_directory.open_run(registry.load("recipes", "digits")()) as run:
        done(str(run))


def publish(folder, done):
    version = temp_files.folder(folder)
    (version / "saved_model.pb").write_text(str(os.getpid()))
    temp_files.sweep(folder)  # must keep the directories of the others
    with locks.in_turn(folder):
        name = repository.move_to_next_version(version, folder).name
    done(name)
