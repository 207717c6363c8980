"""The result of a run: what `result.json` contains, and whether the run is finished."""

import os
import secrets
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.config import Config
from pipeline.config.sections import Export
from pipeline.contracts import Metadata
from pipeline.runtime import environment, run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import TIME
from pipeline.serving import version_manifest
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils import files, safe_io
from pipeline.utils.errors import reason

NOT_EXPORTED = "export"
"""Name of the only check of an export that could not be written, for example to a full disk."""


def measured(
    config: Config,
    saver: CheckpointCallback,
    metrics: dict[str, dict[str, Any]],
    seconds: float,
    calibration: Metadata,
) -> dict[str, Any]:
    """The content of `result.json` before the export: everything needed to compare runs.

    `examples_per_second` is the median over the epochs, without the warm-up; None if a run has too
    few steps. `stopped` is `time` if the time limit ended the run early.
    """
    speeds = saver.history.get("examples_per_second", ())
    speeds = [speed for speed in speeds if speed > 0]  # NaN: nothing was measured
    return {
        "recipe": config.recipe,
        "config_digest": config.digest(),
        "seed": config.runtime.seed,
        "steps": saver.step,
        "epochs": saver.epoch,
        "stopped": None if saver.complete else TIME,
        "time_limit": config.runtime.time_limit,
        **metrics,
        "calibration": dict(calibration),
        "examples_per_second": round(statistics.median(speeds), 1) if speeds else None,
        "seconds": round(seconds, 2),
        "export": None,
        "verification": None,
        "versions": environment.versions(),
    }


def fallback(run: RunDirectory) -> RunDirectory:
    """A temporary directory for files if the disk of the run is full; not created yet."""
    # Not `tempfile.gettempdir()`, which raises if every disk is full.
    parent = os.environ.get("TMPDIR", "/tmp")
    return RunDirectory(Path(parent, f"{run.path.name}-{secrets.token_hex(4)}"))


def write(
    result: Mapping[str, Any], run: RunDirectory, other: RunDirectory
) -> tuple[Path | None, str]:
    """Writes `result.json` to the run directory, or to the other one if that fails.

    Returns: (its path, or None if both failed; why it is not in the run directory).
    """
    why = ""
    for place in (run, other):
        try:
            place.path.mkdir(parents=True, exist_ok=True)
            files.write_json(place.result, result)
            if place is run:
                other.result.unlink(missing_ok=True)  # from an earlier failure
            return place.result, why
        except OSError as error:
            why = why or error.strerror or reason(error)
    return None, why


def finished(config: Config, run: RunDirectory, step: int) -> dict[str, Any] | None:
    """The result of a run complete after this step; None if it has to be tested or exported.

    It has to be if options have changed, if `result.json` is damaged, or if there is no export in
    the directory and with the options of the config; a deleted export counts if there are newer
    versions.
    """
    try:
        result = files.expand_home(safe_io.read_json(run.result))
        same = (result["config_digest"], result["steps"]) == (config.digest(), step)
        same &= result.keys() >= {"calibration", "examples_per_second", "verification"}
        good = not config.export.enabled or _is_exported(config, result)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return result if same and good else None


def options(export: Export) -> dict[str, Any]:
    """The options that determine the content of a version, as `options` in the manifest."""
    return {
        "precision": export.precision,
        "batch_sizes": sorted(set(export.batch_sizes)),
        "calibrate": export.calibrate,
        "formats": sorted(set(export.formats)),
    }


def _is_exported(config: Config, result: Mapping[str, Any]) -> bool:
    version = Path(result["export"])
    if version.parent != run_directory.export_directory(config):
        return False
    if not files.is_version(version.name):
        return False
    if not (version / "saved_model.pb").is_file():
        return int(version.name) < max(files.versions(version.parent), default=0)
    about = version_manifest.about(version)
    same_run = about.get("config_digest") == result["config_digest"]
    return same_run and about.get("options") == options(config.export)
