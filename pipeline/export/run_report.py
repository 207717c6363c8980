"""Prints the last lines of a run: test results, output files, the export."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.config import Config
from pipeline.export import model_card, run_result
from pipeline.export.verification import PROVED
from pipeline.runtime.run_directory import RunDirectory
from pipeline.serving import version_manifest
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils.console import counted, numbers, say


def tested(config: Config, result: dict[str, Any], judged: str) -> None:
    """Prints the metrics of the test split (or the split in its place), calibration, and speed."""
    if config.dry_run:
        return
    metrics, calibration = result[judged], result["calibration"]
    say(judged, f"{numbers(metrics)}  ({counted(metrics['examples'], 'example')})")
    if calibration:
        metadata = ", ".join(f"{name} {value:.3f}" for name, value in calibration.items())
        changed = ", ".join(
            f"{name} {metrics[name]:.4f} -> {value:.4f}"
            for name, value in metrics.get("calibrated", {}).items()
            # The calibrated loss is the cross-entropy; `loss` is that of --train.loss.
            if name != "loss" or config.train.loss is None
        )
        say("calibrated", f"{metadata}, fitted on the validation split; {judged} {changed}")
    if result["examples_per_second"]:
        say("speed", f"{result['examples_per_second']:,.0f} examples/s in training")


def written(
    run: RunDirectory,
    fallback: RunDirectory,
    saver: CheckpointCallback,
    why: str,
) -> None:
    """Prints where the files of the run are and, if its disk is full, what to do.

    `why` is the reason why `result.json` is not in the run directory; empty if it is.
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
    say("warning", text)


def exported(config: Config, run: RunDirectory, result: dict[str, Any]) -> None:
    """Prints the result of the export, and the next command."""
    verification, version = result["verification"], result["export"]
    again = f"python -m pipeline.export {shlex.quote(str(run))}"
    if verification is None:
        say("export", "none (--export.no-enabled)")
    elif version is None:
        _not_exported(verification, again)
    elif config.dry_run:
        say("export", f"verified: {PROVED}")
    elif not Path(version).is_dir():
        say("export", f"{version} was deleted because there are newer ones; {again} repeats it")
    else:
        say("export", f"{version}, verified: {PROVED}")
        _as_served(Path(version), result)
        say("serve", f"{Path(version).parent}/SERVING.md shows how to start a server and call it")
        say("next", f"python -m pipeline.verify {shlex.quote(version)}")
    if config.dry_run:
        say("dry run", "went through every stage; nothing was kept")


def _not_exported(verification: Mapping[str, Any], again: str) -> None:
    failed = {c["name"]: c["detail"] for c in verification["checks"] if not c["passed"]}
    if [*failed] == [run_result.NOT_EXPORTED]:
        say("export", f"NOT published: {failed[run_result.NOT_EXPORTED]}")
        say("next", f"once this is fixed: {again}")
        return
    for name, detail in failed.items():
        say("FAILED", f"{name}: {detail}")
    worse = [*failed] == ["quality"]
    why = "is intact, but worse than the served version" if worse else "failed its checks"
    say("export", f"NOT published: {verification['directory']} {why}")
    if worse:
        say("next", f"{again} --export.tolerance None publishes it anyway")


def _as_served(version: Path, result: dict[str, Any]) -> None:
    """If the export's precision differs from training: prints the difference and its metrics."""
    about = version_manifest.read(version)
    precision, trained = about["precision"], about["trained_precision"]
    if precision == trained.removeprefix("mixed_"):
        return
    say(
        "precision",
        f"{precision} in the export, {trained} in training; compared on {about['compared']} "
        f"examples: {model_card.differences(about['difference'])}",
    )
    if about["judged"] in result:
        say("as served", f"{about['judged']} {numbers(about['metrics'])}")
