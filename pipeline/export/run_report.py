"""The last lines of a run on the console: test results, where everything is, the export."""

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.config import Config
from pipeline.export import model_card, run_result
from pipeline.export.verification import PROVED
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.serving import version_manifest
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils.console import say


def tested(config: Config, result: dict[str, Any], judged: str) -> None:
    """The numbers of the split that the model is judged by, and the speed of training."""
    if config.dry_run:
        return
    say(judged, f"{_numbers(result[judged])}  ({result[judged]['examples']:,} examples)")
    _calibrated(config, result, judged)
    if result["examples_per_second"]:
        say("speed", f"{result['examples_per_second']:,.0f} examples/s in training")


def written(
    run: RunDirectory,
    fallback: RunDirectory,
    saver: CheckpointCallback,
    result: Path | None,
    why: str,
) -> None:
    """Where everything of the run is; if its disk is full, what to do.

    `result` is the path of `result.json`; `why` is empty if that is in the run directory.
    """
    if not why:
        say("written", f"{run}/: result.json, log.jsonl, pictures, checkpoints")
    if not (why or saver.unsaved):
        return
    steps = run_directory.steps(fallback.checkpoints)
    there = [f"checkpoints/step-{step:08d}" for step in steps]
    there += ["result.json"] if result == fallback.result else []
    said = [f"{run} cannot be written: {why or saver.unsaved}"]
    if there:
        copy = f"cp -r {shlex.quote(str(fallback))}/. {shlex.quote(str(run))}"
        said.append(f"{' and '.join(there)} are in {fallback}; once there is room: {copy}")
    if result is None:
        said.append("result.json was not kept")
    if saver.unsaved and not steps:
        newest = run_directory.steps(run.checkpoints)[-1:]
        where = f"after step {newest[0]:,}" if newest else "from the start"
        said.append(f"step {saver.step:,} was not kept; the same command goes on {where}")
    say("warning", "; ".join(said))


def closing(config: Config, run: RunDirectory, result: dict[str, Any]) -> None:
    """After everything: the export, and the next command."""
    exported(config, run, result)
    if config.dry_run:
        say("dry run", "went through every stage; nothing was kept")


def _numbers(metrics: Mapping[str, Any]) -> str:
    measured = {k: v for k, v in metrics.items() if isinstance(v, float)}
    return "  ".join(f"{name} {value:.4f}" for name, value in measured.items())


def exported(config: Config, run: RunDirectory, result: dict[str, Any]) -> None:
    """What became of the export, and the next command."""
    proved = result["verification"]
    again = f"{_python()} -m pipeline.export {shlex.quote(str(run))}"
    if proved is None:
        say("export", "none (--export.no-enabled)")
    elif not proved["passed"]:
        failed = [check for check in proved["checks"] if not check["passed"]]
        if [check["name"] for check in failed] == [run_result.NOT_EXPORTED]:
            say("export", f"NOT published: {failed[0]['detail']}")
            say("next", f"once this is fixed: {again}")
            return
        for check in failed:
            say("FAILED", f"{check['name']}: {check['detail']}")
        worse = [check["name"] for check in failed] == ["quality"]
        why = "is whole, but worse than what is served" if worse else "failed its verification"
        say("export", f"NOT published: {proved['directory']} {why}")
        if worse:
            say("next", f"{again} --export.tolerance None publishes it all the same")
    elif config.dry_run:
        say("export", f"verified: {PROVED}")
    elif not Path(result["export"]).is_dir():
        deleted = "since deleted for newer versions"
        say("export", f"{result['export']}, {deleted}; {again} makes it again")
    else:
        say("export", f"{result['export']}, verified: {PROVED}")
        _served(Path(result["export"]), result)
        say("serve", f"{Path(result['export']).parent}/SERVING.md tells how, and how to call it")
        say("next", f"{_python()} -m pipeline.verify {shlex.quote(result['export'])}")


def _calibrated(config: Config, result: dict[str, Any], judged: str) -> None:
    """What was fitted for the sake of honest probabilities, and what it changed."""
    part, fitted = result[judged], result["calibration"]
    if fitted:
        metadata = ", ".join(f"{name} {value:.3f}" for name, value in fitted.items())
        changed = ", ".join(
            f"{name} {part[name]:.4f} -> {value:.4f}"
            for name, value in part.get("calibrated", {}).items()
            # The calibrated loss is the cross-entropy; `loss` is that of --train.loss.
            if name != "loss" or config.train.loss is None
        )
        say("calibrated", f"{metadata}, fitted on the validation split; {judged} {changed}")


def _served(version: Path, result: dict[str, Any]) -> None:
    """How far the answers are from the trained model's, where their precision is another, and how
    good they are."""
    about = version_manifest.about(version)
    precision, trained = about.get("precision"), str(about.get("trained_precision"))
    difference = about.get("difference")
    if precision != trained.removeprefix("mixed_") and isinstance(difference, dict):
        say(
            "precision",
            f"{precision} in the export, {trained} in training; on {about.get('compared')} "
            f"examples the answers differ: {model_card.apart(difference)}",
        )
        judged, told = str(about.get("judged")), about.get("metrics")
        if isinstance(told, dict) and judged in result:
            # The numbers above are those of the trained model.
            own = {name: told[name] for name in result[judged] if name in told}
            say("as served", f"{judged} {_numbers(own)}")


def _python() -> str:
    """The interpreter as one would type it here: `python`, or that of an environment not active."""
    try:
        here = Path(sys.prefix).is_relative_to(Path.cwd())
    except OSError:  # the current folder is gone
        here = False
    if os.environ.get("VIRTUAL_ENV") == sys.prefix or not here:
        return "python"
    return os.path.relpath(sys.executable)
