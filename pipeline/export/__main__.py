"""Exports the model of a run again without training, or pins the version that is served."""

import dataclasses
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import cli_parser, command_line, export_overrides
from pipeline.config.config import Config
from pipeline.config.validation import require_path
from pipeline.export import deployment_files, manifest_writer
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import Stops
from pipeline.serving import models_config, repository
from pipeline.training import preflight
from pipeline.utils import console, files, safe_io, temp_files
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, run_command, suggest

if TYPE_CHECKING:  # the front door stands before TensorFlow
    from pipeline.data.dataset import Data

PROGRAM = "python -m pipeline.export"
_HELP = f"""\
usage: {PROGRAM} RUN [--export.option VALUE ...]
       {PROGRAM} [NAME] --pin VERSION
       {PROGRAM} [NAME] --unpin

Exports the model of a finished or interrupted run again, from its newest whole checkpoint, without
training: proved, then published under the next version number. Or says which version servers take.

  RUN      folder of a run, such as runs/digits-1; {PROGRAM} RUN --help shows all options
  NAME     a model in saved_models/ (--export.directory names another folder); not needed if it is
           the only one
  --pin    servers that read the model's models.config take this version, until another is pinned
  --unpin  they take the newest again"""


@dataclasses.dataclass(frozen=True)
class _Place:
    directory: Path = Path("saved_models")


@dataclasses.dataclass(frozen=True)
class _Pin:
    pin: int | None = None
    unpin: bool = False
    export: _Place = _Place()


def main(arguments: list[str]) -> int:
    """`python -m pipeline.export RUN` or `[NAME] --pin VERSION`; 1 if nothing was published, or a
    version that fails its proof was not pinned."""
    words = list(arguments)
    name = words.pop(0) if words and not words[0].startswith("-") else None
    pins = any(word.partition("=")[0] in ("--pin", "--unpin") for word in words)
    if {"--help", "-h"} & {*words} and (name is None or pins):
        print(_HELP)
        return 0
    if name is not None:
        require_path(Path(name), "RUN or NAME")
    if pins:
        return _pin(name, words)
    if not name:
        raise UsageError(f"{PROGRAM} takes a run, or --pin VERSION; {_runs('')}; --help tells more")
    return export_again(configure(Path(name), words))


def configure(path: Path, words: list[str]) -> Config:
    """The config of a run with what the words change for this export; nothing is imported for it.

    Raises UsageError if there is no run to export, or for an option that would change the model.
    """
    run = RunDirectory(path)
    if not run.config.is_file():
        raise UsageError(f"{path} is no run: it has no config.json; {_runs(str(path))}")
    if "--help" in words or "-h" in words:
        export_overrides.show(PROGRAM, path, command_line.read(run.config))
    changes = export_overrides.changes(words)
    source = changes.get("source", {})
    try:
        config = command_line.read(run.config, source)
    except UsageError as error:
        if "--source.path" not in str(error) or "path" in source:
            raise
        raise UsageError(_without_data(error)) from None
    exported = {**changes.get("export", {}), "enabled": True}
    config = config.changed(**{**changes, "export": exported, "run_directory": path})
    if not run_directory.steps(run.checkpoints):
        own = shlex.join(["--config", str(run.config), "--run-directory", str(run)])
        raise UsageError(f"{run} has no checkpoint yet; train it: {command_line.PROGRAM} {own}")
    preflight.check(config)
    return config


def _runs(wrong: str) -> str:
    known = [str(path.parent) for path in run_directory.RUNS.glob("*/config.json")]
    if not known:
        return f"there are none in {run_directory.RUNS}/; {command_line.PROGRAM} makes one"
    return suggest(wrong, known)


def _without_data(error: UsageError) -> str:
    return (
        f"an export is proved on real examples, and the data of this run cannot be used: {error}; "
        "bring them back, or say where they lie now: --source.path PATH --force"
    )


def export_again(config: Config) -> int:
    """What the end of a run does, for a run that is there; 1 if nothing was published.

    Raises UsageError if its data or its checkpoints cannot be used.
    """
    with console.lasting(), Stops().listening():
        run = RunDirectory(config.run_directory)
        with run.locked():
            temp_files.sweep(run_directory.export_directory(config))
            result = _exported(config, run)
            _record(config, run, result)
    return 0 if result["export"] else 1


def _exported(config: Config, run: RunDirectory) -> dict[str, Any]:
    start = time.monotonic()
    from pipeline.runtime import environment

    # Imports TensorFlow; all that follows may, too
    machine = environment.start(config.runtime)
    from pipeline.data import batching
    from pipeline.export import run_report
    from pipeline.export.handoff import Handoff, evaluation_split
    from pipeline.training import progress_report
    from pipeline.training.callbacks.checkpoint import CheckpointCallback
    from pipeline.training.checkpoints import Checkpoints
    from pipeline.training.trainer import Trainer

    loaded = _loaded(config)
    splits = loaded.splits
    judged = evaluation_split(splits)
    held = {
        name: batching.evaluation(split, config.train, machine.replicas)
        for name, split in splits.items()
        if name in (judged, "validation")
    }
    batches = batching.training(splits["train"], config.train, config.runtime.seed)
    trainer = Trainer(
        config=config,
        machine=machine,
        task=loaded.task,
        plain=batches,
        batches=batches,
        evaluated=held,
        locate=loaded.source.location,
        stops=Stops(),
    )
    trainer.build()
    model = trainer.model
    saver = CheckpointCallback(
        Checkpoints(model.state, run.checkpoints, writes=False), batches, config.train
    )
    saver.resume()
    of = f"of {batches.last_step:,}{'' if saver.complete else ', which is not its end'}"
    say("run", f"{config.recipe} in {run}, trained for {saver.step:,} steps {of}")
    progress_report.damaged(saver)
    progress_report.decision(saver.choose())
    model.step.update.swap_ema()  # the averaged weights, if any
    handoff = Handoff(
        config=config,
        run=run,
        data=loaded,
        evaluated=held,
        model=model,
        checkpoint=saver,
        start=start,
    )
    result = handoff.test()
    run_report.tested(config, result, judged)
    result = handoff.export(result)
    run_report.exported(config, run, result)
    return result


def _loaded(config: Config) -> "Data":
    from pipeline.data import dataset

    try:
        return dataset.load(config)
    except UsageError as error:
        raise UsageError(_without_data(error)) from None


def _record(config: Config, run: RunDirectory, result: dict[str, Any]) -> None:
    """Where the newest export of a finished run is, in its own `result.json`.

    Not of one in another place or of another kind than the run's own, which the run would miss.
    """
    try:
        before = files.expand_home(safe_io.read_json(run.result))
        same = all(before[name] == result[name] for name in ("steps", "config_digest"))
    except (OSError, ValueError, KeyError, TypeError):
        return
    path = config.source.path  # where the data lie now
    own = command_line.read(run.config, {} if path is None else {"path": path})
    place, kind = run_directory.export_directory, manifest_writer.options
    same &= place(own) == place(config) and kind(own.export) == kind(config.export)
    if same and result["export"]:
        new = {name: result[name] for name in ("export", "verification")}
        files.write_json(run.result, {**before, **new})


def _pin(name: str | None, words: list[str]) -> int:
    given = cli_parser.changes(words, _Pin)
    version, directory = given.get("pin"), given.get("export", {}).get("directory")
    if (version is None) == (not given.get("unpin")):
        raise UsageError("give --pin VERSION, such as --pin 3, or --unpin")
    model = _model(name, directory or _Place.directory)
    before = models_config.pinned(model)
    path = repository.require(model, version)
    if path is not None:
        from pipeline.export.verification import verify

        outcome = verify(path)
        if not outcome.passed:
            print(f"{outcome}\nNOT pinned: {path} must not be served")
            return 1
    repository.pin(model, version)
    deployment_files.follow(model, repository.live(model))
    same = before == (() if version is None else (version,))
    was = "as before" if same else f"was {', '.join(map(str, before)) or 'nothing'}"
    print(f"pinned     {path or 'nothing'} ({was})")
    print(f"served     {repository.live(model)}, by servers that read {model / models_config.NAME}")
    print(
        f"next       --model_config_file=/models/{model.name}/{models_config.NAME} "
        "--model_config_file_poll_wait_seconds=60 has a running server follow"
    )
    return 0


def _model(name: str | None, directory: Path) -> Path:
    """The folder of a model's versions."""
    models = {path.name: path for path in directory.glob("[!.]*") if files.versions(path)}
    if name is None:
        if len(models) == 1:
            return next(iter(models.values()))
        raise UsageError(f"--pin needs the name of a model in {directory}; {suggest('', models)}")
    if name in models:
        return models[name]
    if files.versions(Path(name)):  # as a path
        return Path(os.path.abspath(name)) if Path(name).name in ("", "..") else Path(name)
    raise UsageError(f"there is no exported model {name!r} in {directory}; {suggest(name, models)}")


if __name__ == "__main__":
    run_command(main)
