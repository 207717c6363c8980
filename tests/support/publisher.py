"""Publishes versions of a model: `python publisher.py EXPORT MODEL`; a trial for each line read.

A trial is a process that publishes two copies of EXPORT in MODEL. The line says at which operation
on files it is killed with SIGKILL; 0: never. The answer is a line of JSON: how it ended, and the
numbers that it could tell of before. The copies are written file by file, as an export is.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from pipeline.config.sections import Export
from pipeline.serving import repository
from pipeline.utils import temp_files

_EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
_TOO_LONG = 60  # seconds after which a hanging trial ends


def strike(model, at):
    """Kills this process when it is about to do so manieth an operation below a folder."""
    count = 0

    def heard(event, arguments):
        nonlocal count
        if event in _EVENTS and isinstance(arguments[0], str | os.PathLike):
            inside = os.fspath(arguments[0]).startswith(model) or event in ("os.remove", "os.rmdir")
            count += inside
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(heard)


def work(source, model, at, told):
    """Two versions, one after the other."""
    signal.alarm(_TOO_LONG)
    strike(str(model), at)
    for _ in range(2):
        temp_files.sweep(model)
        folder = temp_files.folder(model)
        for path in sorted(source.rglob("*")):
            target = folder / path.relative_to(source)
            target.mkdir() if path.is_dir() else shutil.copyfile(path, target)
        outcome = repository.publish(folder, model, Export(keep=3), ("accuracy", 1))
        os.write(told, f"{outcome.directory.name}\n".encode())


def trial(source, model, at):
    """How the process ended (as `os.waitstatus_to_exitcode` says), what it told."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            work(source, model, at, writer)
        finally:
            os._exit(int(sys.exc_info()[0] is not None))
    os.close(writer)
    with os.fdopen(reader) as file:
        numbers = [int(line) for line in file]
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), numbers


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(trial(Path(sys.argv[1]), Path(sys.argv[2]), int(line))), flush=True)
