"""What a run says of itself: the lines on the console and `result.json`."""

import math
import os
import shlex
import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from pipeline.config.config import Config
from pipeline.contracts import Batches, Decision, Facts, Info
from pipeline.data.splits import Split
from pipeline.export import manifest_writer, model_card, run_result
from pipeline.models import _layers
from pipeline.runtime import environment, run_directory, signals
from pipeline.runtime.cluster import Cluster
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training.callbacks.checkpoint import Saver
from pipeline.utils.errors import plain
from pipeline.verify import PROVED


def say(name: str, text: object) -> None:
    """One line: a key, and what there is to say."""
    print(f"{name:<10} {plain(str(text))}", flush=True)


def opening(
    config: Config,
    machine: environment.Runtime,
    run: RunDirectory,
    info: Info,
    splits: dict[str, Split],
    model: keras.Model,
    batches: Batches,
    decisions: list[Decision],
) -> None:
    """Before training: what goes in."""
    where = "(dry run: two steps on a few examples)" if config.dry_run else f"in {run}"
    say("run", f"{config.recipe} {where}")
    counts = ", ".join(f"{name} {len(split):,}" for name, split in splits.items())
    specs = next(iter(splits.values())).store.specs
    fields = ", ".join(
        f"{name} {'x'.join(map(str, spec.shape))} {spec.dtype.name}".replace("  ", " ")
        for name, spec in specs.items()
        if name != "id"
    )
    say("data", f"{counts}; {fields}")
    for note in info.notes:
        say("note", note)
    for one in decisions:
        decision(one)
    trained = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    frozen = f", {trained:,} of them trained, frozen: {' '.join(model.frozen)}"
    say(
        "model",
        f"{config.model.name}, {model.count_params():,} parameters{frozen if model.frozen else ''}",
    )
    if machine.replicas > 1 and _layers.normalises_apart(model):
        say(
            "note",
            "BatchNormalization sees each replica's part of a batch; "
            "--train.synchronized-batch-norm makes it see the whole",
        )
    size, each = batches.batch_size, batches.steps_per_epoch
    say("training", f"{batches.last_step:,} steps of {size} examples, {each:,} an epoch")
    if batches.first_step:
        say("resumed", f"after step {batches.first_step:,}, from the newest whole checkpoint")
    elif run.log.is_file() and run.log.stat().st_size:
        say("note", f"{run} was trained before, but has no checkpoint any more: from the start")


def damaged(saver: Saver) -> None:
    """Checkpoints that were found and could not be used."""
    for note in saver.notes:
        say("damaged", f"{note}; the one before it is taken")


def again(decision: Decision, batches: Batches) -> None:
    """A fault was mended by this; where training goes on."""
    where = f"after step {batches.first_step:,}" if batches.first_step else "from the start"
    say(decision.name, f"{decision}; again {where}")


def worker(cluster: Cluster) -> None:
    """All that a worker says which is not the chief."""
    say("worker", f"{cluster.index} of {len(cluster.workers)} trains; worker 0 prints and writes")


def finished(run: RunDirectory) -> None:
    """A run given again that needs nothing more."""
    say("finished", f"{run} was complete; nothing was trained, tested or exported again")


@contextmanager
def interruptible(config: Config, run: RunDirectory) -> Iterator[None]:
    """Says on Ctrl-C, a signal, or an error of the disk how to go on; passes them on."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, BrokenPipeError):  # nobody reads what would be said
            raise
        asked = signals.behind(error) or isinstance(error, OSError)
        steps = run_directory.steps(run.checkpoints) if asked else []
        if steps and not config.dry_run:
            newest = f"{steps[-1]:,}"
            say("stopped", f"the command with --run-directory {run} goes on after step {newest}")
        raise


def time_is_up(config: Config, saver: Saver) -> None:
    """Training ended before its last step."""
    limit = config.runtime.time_limit
    say("stopped", f"after step {saver.step:,}: --runtime.time-limit {limit}; a longer one goes on")


def late(saver: Saver, limit: str | None) -> None:
    """The run took longer than it may; two seconds are nothing."""
    if saver.stops.over > 2:
        say(
            "note",
            f"{saver.stops.over:.0f} s over --runtime.time-limit {limit}: to begin, a call of the "
            "step and to end take longer than that leaves",
        )


def decision(decision: Decision) -> None:
    """An automatic choice and why it was made."""
    say(decision.name, decision)


def result(
    config: Config,
    saver: Saver,
    metrics: dict[str, dict[str, Any]],
    seconds: float,
    stopped: str | None,
    calibration: Facts,
) -> dict[str, Any]:
    """The content of `result.json` before the export: everything to compare runs by.

    `examples_per_second` is the median over the epochs, of training steps after the warm-up; None
    where a run has too few steps. `seconds` is this process's time, from its start to here.
    `stopped` is `time`, where that was up before the last step; `calibration` holds the facts by
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


def tested(config: Config, result: dict[str, Any], judged: str) -> None:
    """The numbers of the split that the model is judged by, and the speed of training."""
    if config.dry_run:
        return
    say(judged, f"{_numbers(result[judged])}  ({result[judged]['examples']:,} examples)")
    _calibrated(result, judged)
    if result["examples_per_second"]:
        say("speed", f"{result['examples_per_second']:,.0f} examples/s in training")


def written(
    run: RunDirectory, fallback: RunDirectory, saver: Saver, result: Path | None, why: str
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


def _calibrated(result: dict[str, Any], judged: str) -> None:
    """What was fitted for the sake of honest probabilities, and what it changed."""
    part, fitted = result[judged], result.get("calibration")
    if fitted:
        facts = ", ".join(f"{name} {value:.3f}" for name, value in fitted.items())
        changed = ", ".join(
            f"{name} {part[name]:.4f} -> {value:.4f}"
            for name, value in part.get("calibrated", {}).items()
        )
        say("calibrated", f"{facts}, fitted on the validation split; {judged} {changed}")


def _served(version: Path, result: dict[str, Any]) -> None:
    """How far the answers are from the trained model's, where their precision is another, and how
    good they are."""
    about = manifest_writer.read(version)
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
