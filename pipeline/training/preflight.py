"""Checks, before TensorFlow is imported, that a run and its export can be written."""

import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence

from pipeline.config import formats, objects, registry
from pipeline.config.config import RUNS, Config
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.serving import repository
from pipeline.training.callback_order import AFTER_CHECKPOINT, BEFORE_CHECKPOINT
from pipeline.utils import files, locks
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError, needs_package

_ONNX_PACKAGES = ("tf2onnx", "onnxruntime")  # convert and run models


def check(config: Config, planned: Sequence[str] = ()) -> None:
    """Raises UsageError unless the run and the export can be written.

    Also checks that a resumed run has its original options; options in `planned` are
    not chosen yet, so they cannot differ.
    """
    try:
        _check(config, planned)
    except OSError as error:
        raise UsageError(f"cannot use {error.filename}: {error.strerror}") from None


def _check(config: Config, planned: Sequence[str]) -> None:
    runs = config.run_directory or RUNS
    for name in config.train.callbacks:
        if name in BEFORE_CHECKPOINT + AFTER_CHECKPOINT:
            raise UsageError(
                f"--train.callbacks: {name} is part of every run; remove it"
            )
    require_trackers(config.train.callbacks)
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
    if config.run_directory is not None:
        run = RunDirectory(config.run_directory)
        locks.require_free(run.path)
        run_directory.changes(run_directory.with_saved_plan(config, planned), run)
    if config.export.enabled:
        if not formats.is_model_name(config.name):
            raise UsageError(
                f"a server cannot load a model named {config.name!r}; set --export.name"
            )
        if "onnx" in config.export.formats:
            _require_onnx()
        target = run_directory.export_directory(config)
        files.check_writable(target, "--export.directory")
        export_paths = {os.path.realpath(target), os.path.realpath(target.parent)}
        if os.path.realpath(runs) in export_paths:
            raise UsageError(
                f"--run-directory: {runs} is the directory of the exported models;"
                " choose another"
            )
        repository.pinned_versions(target)  # an error now, not at the end of the run


def require_trackers(callbacks: Iterable[str]) -> None:
    """Raises UsageError unless the packages of the trackers among them are installed.

    Neither TensorFlow nor the package of a tracker is imported.
    """
    for name in callbacks:
        if objects.is_text_only(name):  # not needed to export a stored run
            continue
        callback = registry.find("callbacks", name)
        if callback.module != "pipeline.trackers":
            continue
        package = callback.name.lower()  # MLflow, WandB and Trackio are named alike
        if importlib.util.find_spec(package) is None:
            raise UsageError(needs_package(callback.name, package, package))


def _require_onnx() -> None:
    missing = []
    for name in _ONNX_PACKAGES:
        if importlib.util.find_spec(name) is None:
            missing.append(name)
    if missing:
        raise UsageError(
            f"--export.formats onnx needs {' and '.join(missing)}: pip install"
            f" {' '.join(missing)} (or install this package with its extra: '.[onnx]')"
        )


def summary(config: Config, planned: Sequence[str] = ()) -> str:
    """Returns the first line of a run: what it is going to do."""
    parts = [f"{config.model.name} on {config.source.title}"]
    if "train.epochs" not in planned:
        parts.append(pluralize(config.train.epochs, "epoch"))
    if config.train.steps:
        parts.append(f"at most {pluralize(config.train.steps, 'step')}")
    line = f"{config.recipe}: {', '.join(parts)}"
    if config.run_directory and not config.dry_run:
        line = f"{config.recipe} in {config.run_directory}: {', '.join(parts)}"
    if sys.modules.get("tensorflow"):
        return line
    return f"{line}; importing TensorFlow"
