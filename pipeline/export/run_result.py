"""What a run has come to: its result, and whether it needs nothing more."""

import os
import secrets
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.config import Config
from pipeline.contracts import Metadata
from pipeline.export import manifest_writer
from pipeline.runtime import environment, run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.serving import version_manifest
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils import files, safe_io
from pipeline.utils.errors import reason

NOT_EXPORTED = "export"
"""The one check of an export that could not be written, as its disk was full."""


def measured(
    config: Config,
    saver: CheckpointCallback,
    metrics: dict[str, dict[str, Any]],
    seconds: float,
    stopped: str | None,
    calibration: Metadata,
) -> dict[str, Any]:
    """The content of `result.json` before the export: everything to compare runs by.

    `examples_per_second` is the median over the epochs, of training steps after the warm-up; None
    where a run has too few steps. `seconds` is this process's time, from its start to here.
    `stopped` is `time`, where that was up before the last step; `calibration` holds the metadata by
    which answers are calibrated.
    """
    speeds = saver.history.get("examples_per_second", ())
    speeds = [speed for speed in speeds if speed > 0]  # not a number: nothing was measured
    return {
        "recipe": config.recipe,
        "config_digest": config.digest(),
        "seed": config.runtime.seed,
        "steps": saver.step,
        "epochs": saver.epoch,
        "stopped": stopped,
        **metrics,
        "calibration": dict(calibration),
        "examples_per_second": round(statistics.median(speeds), 1) if speeds else None,
        "seconds": round(seconds, 2),
        "export": None,
        "verification": None,
        "versions": environment.versions(),
    }


def fallback(run: RunDirectory) -> RunDirectory:
    """Where in the temporary folder, with the same layout, goes what a run directory cannot take.

    Nothing is made yet.
    """
    # Not `tempfile.gettempdir()`, which raises where every disk is full.
    parent = os.environ.get("TMPDIR", "/tmp")
    return RunDirectory(Path(parent, f"{run.path.name}-{secrets.token_hex(4)}"))


def write(
    result: Mapping[str, Any], run: RunDirectory, other: RunDirectory
) -> tuple[Path | None, str]:
    """Writes `result.json` to the run directory, or to the other one where that fails.

    Returns: (its path, or None if neither could be written; why it is not in the run directory).
    """
    try:
        files.write_json(run.result, result)
        other.result.unlink(missing_ok=True)  # written before there was room
        return run.result, ""
    except OSError as error:
        why = error.strerror or reason(error)
    try:
        other.path.mkdir(parents=True, exist_ok=True)
        files.write_json(other.result, result)
        return other.result, why
    except OSError:
        return None, why


def finished(config: Config, run: RunDirectory, step: int | None = None) -> dict[str, Any] | None:
    """The result of a run that needs nothing more: its export, if it is to have one, is there.

    None too where `--force` has changed the options since, or the export belongs elsewhere now or
    is to be another: one in another place than the config's is not taken for this run's. An export
    that is gone is made again, unless there are newer versions: then it was deleted for them, and
    would replace them.

    Args:
        config: Of the run.
        run: Its folder.
        step: The last one that was trained; None: whichever the result tells of, also under other
            options than the config's.
    """
    try:
        result = files.expand_home(safe_io.read_json(run.result))
        version, steps, digest = result["export"], result["steps"], result["config_digest"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not _can_be_told(result):
        return None
    if step is not None and (digest != config.digest() or steps != step):
        return None
    if not config.export.enabled or _is_export(config, version, digest):
        return result
    return None


def _can_be_told(result: Mapping[str, Any]) -> bool:
    """Whether `report` finds in it what it says; not so after it was edited."""
    if not {"verification", "examples_per_second", "calibration"} <= result.keys():
        return False
    proved, speed = result["verification"], result["examples_per_second"]
    calibration = result["calibration"]
    parts = [result[name] for name in ("test", "validation", "train") if name in result]
    return (
        bool(parts)
        and all(_is_measured(part, calibration) for part in parts)
        and (proved is None or _is_proof(proved, result["export"]))
        and isinstance(result["export"], str | None)
        and (speed is None or _is_number(speed))
        and isinstance(calibration, dict)
        and all(_is_number(value) and value > 0 for value in calibration.values())
    )


def _is_measured(part: Any, calibration: Any) -> bool:
    """Whether these are the metrics of a split, also calibrated where that was done."""
    if not isinstance(part, dict) or not isinstance(part.get("examples"), int):
        return False
    changed = part.get("calibrated", {}) if calibration else {}
    return isinstance(changed, dict) and all(
        _is_number(value) and _is_number(part.get(name)) for name, value in changed.items()
    )


def _is_proof(proved: Any, version: Any) -> bool:
    """Whether this is a verification: of a version if it was passed, else of what failed."""
    if not isinstance(proved, dict) or not isinstance(proved.get("checks"), list):
        return False
    if proved.get("passed") is True:
        return isinstance(version, str)
    named = {"name", "passed", "detail"}
    checks = [isinstance(check, dict) and named <= check.keys() for check in proved["checks"]]
    return proved.get("passed") is False and "directory" in proved and all(checks)


def _is_number(value: Any) -> bool:
    """Whether it can be written out; an int of JSON may be larger than any float."""
    return isinstance(value, int | float) and abs(value) < 1e300


def _is_export(config: Config, version: Any, digest: Any) -> bool:
    place = run_directory.export_directory(config)
    if not isinstance(version, str) or Path(version).parent != place:
        return False
    version = Path(version)
    if not files.is_version(version.name):
        return False
    if not (version / "saved_model.pb").is_file():
        return int(version.name) < max(files.versions(version.parent), default=0)
    about = version_manifest.about(version)
    if about.get("config_digest") != digest:  # another run's was put in its place
        return False
    return about.get("options") == manifest_writer.options(config.export)
