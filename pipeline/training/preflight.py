"""Checks before TensorFlow is imported: whether a run and its export can be written."""

import os

from pipeline.config.config import Config
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.serving import models_config
from pipeline.utils import files, locks
from pipeline.utils.errors import UsageError

# The callbacks of every run, before and after the one that saves checkpoints. Each can add to an
# epoch's logs for the callbacks after it; the metric logger writes only what has been saved.
BEFORE_CHECKPOINT = ("gradient_monitor", "unfreeze", "average_weights", "throughput", "time_budget")
AFTER_CHECKPOINT = ("metric_logger", "progress")


def check(config: Config) -> None:
    """Raises UsageError unless the run and the export can be written where the config says."""
    try:
        _check(config)
    except OSError as error:
        raise UsageError(f"cannot use {error.filename}: {error.strerror}") from None


def _check(config: Config) -> None:
    runs = config.run_directory or run_directory.RUNS
    for name in config.train.callbacks:
        if name in BEFORE_CHECKPOINT + AFTER_CHECKPOINT:
            raise UsageError(f"--train.callbacks: {name} is part of every run; remove it")
    files.check_writable(runs, "--run-directory")
    if config.source.name == "folder" and not config.dry_run:
        for flag, path in {
            "--run-directory": runs,
            "--export.directory": config.export.directory,
            "--data.cache-directory": config.data.cache_folder,
        }.items():
            files.require_outside(path, config.source.path, flag)
    if config.data.cache == "disk" or config.data.cache_directory is not None:
        files.check_writable(config.data.cache_folder, "--data.cache-directory")
    run_directory.earlier_splits(config)
    if config.run_directory is not None:
        run = RunDirectory(config.run_directory)
        locks.require_free(run.path / ".lock", str(run), run_directory.IN_USE)
        run_directory.changes(config, run)
    if config.export.enabled:
        target = run_directory.export_directory(config)
        files.check_writable(target, "--export.directory")
        place = config.run_directory or run_directory.RUNS
        if os.path.realpath(place) in (os.path.realpath(p) for p in (target, *target.parents[:1])):
            raise UsageError(
                f"--run-directory: {place} is the directory of the exported models; choose another"
            )
        models_config.pinned(target)  # an error now, not at the end of the run
