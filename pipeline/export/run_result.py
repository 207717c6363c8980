"""The result of a run: the content of `result.json`, and the last lines printed."""

import os
import secrets
import shlex
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.config import Config
from pipeline.config.sections import ExportConfig
from pipeline.contracts import Metadata
from pipeline.evaluation.predictions import no_skill_warning
from pipeline.export import text_files
from pipeline.export.verification import PROVED
from pipeline.runtime import environment, run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import TIME
from pipeline.serving import repository, version_manifest
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils import files, safe_io
from pipeline.utils.console import numbers, pluralize, say, say_result, spread
from pipeline.utils.errors import reason

NOT_EXPORTED = "export"
"""The only check of an export that could not be written, such as to a full disk."""


def summarize(
    config: Config,
    saver: CheckpointCallback,
    metrics: dict[str, dict[str, Any]],
    seconds: float,
    calibration: Metadata,
) -> dict[str, Any]:
    """Returns the content of `result.json` before the export.

    `examples_per_second` is the median over the epochs, without the warm-up; None if a
    run has too few steps. `stopped` is `time` if the time limit ended the run early.
    """
    speeds = saver.history.get("examples_per_second", ())
    speeds = [speed for speed in speeds if speed > 0]  # NaN: nothing was measured
    speed = round(statistics.median(speeds), 1) if speeds else None
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
        "examples_per_second": speed,
        "seconds": round(seconds, 2),
        "export": None,
        "verification": None,
        "versions": environment.versions(),
    }


def fallback(run: RunDirectory) -> RunDirectory:
    """Names a temporary directory for files if the disk of the run is full."""
    # Not `tempfile.gettempdir()`, which raises if every disk is full.
    parent = os.environ.get("TMPDIR", "/tmp")
    return RunDirectory(Path(parent, f"{run.path.name}-{secrets.token_hex(4)}"))


def write(
    result: Mapping[str, Any], run: RunDirectory, fallback: RunDirectory
) -> tuple[Path | None, str]:
    """Writes `result.json` to the run directory, or to the fallback if that fails.

    Returns the path, None if both failed; and why it is not in the run directory.
    """
    why = ""
    for directory in (run, fallback):
        try:
            directory.path.mkdir(parents=True, exist_ok=True)
            files.write_json(directory.result, result)
            if directory is run:
                fallback.result.unlink(missing_ok=True)  # from an earlier failure
            return directory.result, why
        except OSError as error:
            why = why or error.strerror or reason(error)
    return None, why


def load_result(config: Config, run: RunDirectory, step: int) -> dict[str, Any] | None:
    """Reads the result of a run that is complete after this step.

    Returns None if the run must be tested or exported again: if options have changed,
    `result.json` is damaged, or there is no export in the directory and with the
    options of the config. A deleted export counts if there are newer versions.
    """
    try:
        result = safe_io.read_json(run.result)
        same = result["config_digest"] == config.digest() and result["steps"] == step
        same &= result.keys() >= {"calibration", "examples_per_second", "verification"}
        good = not config.export.enabled or _is_exported(config, result)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return result if same and good else None


def options(export: ExportConfig) -> dict[str, Any]:
    """Returns `options` of the manifest, which determine the content of a version."""
    return {
        "precision": export.precision,
        "batch_sizes": sorted(set(export.batch_sizes)),
        "calibrate": export.calibrate,
        "formats": sorted(set(export.formats)),
    }


def _is_exported(config: Config, result: Mapping[str, Any]) -> bool:
    version = Path(result["export"])
    is_there = version.parent == run_directory.export_directory(config)
    if not is_there or not repository.is_version(version.name):
        return False
    if not (version / "saved_model.pb").is_file():
        return int(version.name) < max(repository.versions(version.parent), default=0)
    manifest = version_manifest.properties(version)
    same_run = manifest.get("config_digest") == result["config_digest"]
    return same_run and manifest.get("options") == options(config.export)


def report_test(config: Config, result: dict[str, Any], split: str) -> None:
    """Prints the metrics of the split of the final test, calibration, and speed."""
    if config.dry_run:
        return
    if summary := result.get("cross_validation"):
        say_result("folds", spread(summary["metrics"], summary["folds"]))
    metrics = result[split]
    say_result(
        split, f"{numbers(metrics)}  ({pluralize(metrics['examples'], 'example')})"
    )
    if whole := metrics.get("with_copies"):
        copies = whole["examples"] - metrics["examples"]
        say_result(
            "copies",
            f"{copies:,} of {whole['examples']:,} test examples are exact copies of"
            " others in training or validation and left out; with them:"
            f" {numbers(whole)}",
        )
    if result["calibration"] == {"temperature": 1.0}:
        say("calibrated", "no: no temperature lowers the validation loss")
    elif result["calibration"]:
        parts = []
        for name, value in result["calibration"].items():
            if isinstance(value, float):
                parts.append(f"{name} {value:.3f}")
            elif isinstance(value, int):
                parts.append(f"{name} {value}")
        calibration = ", ".join(parts)
        changes = []
        for name, value in metrics.get("calibrated", {}).items():
            # The calibrated loss is the cross-entropy; `loss` may be another one.
            if name != "loss" or config.train.loss is None:
                changes.append(f"{name} {metrics[name]:.4f} -> {value:.4f}")
        text = f"{calibration}, fitted on the validation split"
        if changes:
            text += f"; {split} {', '.join(changes)}"
        say("calibrated", text)
    if result["examples_per_second"]:
        say("speed", f"{result['examples_per_second']:,.0f} examples/s in training")


def report_files(
    run: RunDirectory, fallback: RunDirectory, saver: CheckpointCallback, why: str
) -> None:
    """Prints where the files of the run are and, if its disk is full, what to do.

    `why` says why `result.json` is not in the run directory; empty if it is.
    """
    if not why:
        names = ("result.json", "predictions.csv", "curves.png", "mistakes.png")
        there = [name for name in names if (run.path / name).is_file()]
        say("written", f"{run}/: {', '.join(there)} and others")
    if not (why or saver.unsaved):
        return
    text = f"{run} cannot be written: {why or saver.unsaved}"
    if fallback.path.is_dir():
        copy = f"cp -r {shlex.quote(str(fallback))}/. {shlex.quote(str(run))}"
        text += f"; use the files in {fallback}; once there is space: {copy}"
    say_result("warning", text)


def report_export(config: Config, run: RunDirectory, result: dict[str, Any]) -> None:
    """Prints the result of the export, and the next command."""
    verification = result["verification"]
    version = result["export"]
    again = f"pipeline export {shlex.quote(str(run))}"
    if verification is None:
        if config.data.fold is None:  # the run of all folds is exported
            say_result("export", "none (--export.no-enabled)")
    elif version is None:
        _not_exported(verification, again)
    elif config.dry_run:
        say_result("export", f"verified: {PROVED}")
    elif not Path(version).is_dir():
        say(
            "export",
            f"{version} was deleted because there are newer ones; {again} repeats it",
        )
    else:
        say_result("export", f"{version}, verified: {PROVED}")
        _as_served(Path(version), result)
        guide = Path(version).parent / "SERVING.md"
        say("serve", f"{guide} shows how to start a server and call it")
        say("next", f"pipeline verify {shlex.quote(version)}")
    for file, why in left_out(result).items():
        say_result("left out", f"{file}: {why}")
    if warning := no_skill_warning(result.get("no_better_than")):
        say_result("warning", warning)
    if config.dry_run:
        say("dry run", "went through every stage; nothing was kept")


def left_out(result: Mapping[str, Any]) -> dict[str, str]:
    """Files in other formats that a published version does not have, and why."""
    verification = result.get("verification") or {}
    return verification.get("left_out", {}) if result.get("export") else {}


def _not_exported(verification: Mapping[str, Any], again: str) -> None:
    failed = {c["name"]: c["detail"] for c in verification["checks"] if not c["passed"]}
    if [*failed] == [NOT_EXPORTED]:
        say_result("FAILED", f"NOT published: {failed[NOT_EXPORTED]}")
        say("next", f"once this is fixed: {again}")
        return
    for name, detail in failed.items():
        say_result("FAILED", f"{name}: {detail}")
    directory = verification["directory"]
    if [*failed] != ["quality"]:
        say_result("export", f"NOT published: {directory} failed its checks")
        return
    why = "is intact, but worse than the served version"
    say_result("export", f"NOT published: {directory} {why}")
    say("next", f"{again} --export.tolerance None publishes it anyway")


def _as_served(version: Path, result: dict[str, Any]) -> None:
    """Prints the effect of an export in a precision other than the training's."""
    manifest = version_manifest.read(version)
    precision = manifest["precision"]
    trained = manifest["trained_precision"]
    if precision == trained.removeprefix("mixed_"):
        return
    say(
        "precision",
        f"{precision} in the export, {trained} in training; compared on"
        f" {manifest['compared']} examples:"
        f" {text_files.differences(manifest['difference'])}",
    )
    if manifest["evaluated_split"] in result:
        say(
            "as served", f"{manifest['evaluated_split']} {numbers(manifest['metrics'])}"
        )
