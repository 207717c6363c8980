"""Publishes versions in a process that is killed at a chosen file operation."""

import os
import shutil
import signal
import sys

from pipeline.config.sections import ExportConfig
from pipeline.serving import repository
from pipeline.utils import temp_files

_EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
_TIMEOUT = 60  # seconds after which a hanging process ends


def publish(source, model, kill_at):
    """Publishes two copies of an export, file by file as an export writes them.

    Args:
        source: The export.
        model: The directory of the versions.
        kill_at: Index of the file operation before which the process is killed; 0 for
            none.
    """
    signal.alarm(_TIMEOUT)
    _kill_at(str(model), kill_at)
    for _ in range(2):
        temp_files.sweep(model)
        folder = temp_files.folder(model)
        for path in sorted(source.rglob("*")):
            target = folder / path.relative_to(source)
            target.mkdir() if path.is_dir() else shutil.copyfile(path, target)
        repository.publish(folder, model, ExportConfig(keep=3), ("accuracy", 1))


def _kill_at(model, at):
    count = 0

    def hook(event, arguments):
        nonlocal count
        if event in _EVENTS and isinstance(arguments[0], str | os.PathLike):
            inside = os.fspath(arguments[0]).startswith(model) or event in (
                "os.remove",
                "os.rmdir",
            )
            count += inside
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
