"""Exports the model of a run again, without training, or pins the served version."""

import dataclasses
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipeline.config import cli_parser, command_line, help_text, registry
from pipeline.config.config import Config
from pipeline.config.sections import ExportConfig
from pipeline.config.validation import require_path
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import StopSignals
from pipeline.serving import repository
from pipeline.training import preflight
from pipeline.utils import files, locks, safe_io, temp_files
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, run_command, suggest

PROGRAM = "pipeline export"
_HELP = f"""\
usage: {PROGRAM} RUN [--export.option VALUE ...]
       {PROGRAM} NAME --pin VERSION
       {PROGRAM} NAME --unpin

Exports the model of a finished or interrupted run again, from its newest undamaged
checkpoint and without training: verifies the export and publishes it under the next
version number. With --pin or --unpin, selects the version that servers load.

  RUN      directory of a run, such as runs/digits-1; RUN --help shows all options
  NAME     a model in saved_models/, or its directory
  --pin    servers that read the model's models.config load this version until another
           is pinned
  --unpin  these servers load the newest version again"""

_ABOUT = """\
Exports the model of a run again, without training. All other options are the run's. If
its data has been moved, add --source.path PATH --force."""
# Section ("" for the top level) -> the options that may differ from those of the run:
# none of them changes the model. In addition, the changeable options of the task.
_ALLOWED = {
    "": ("force",),
    "source": ("path",),
    "clean": ("manifest",),
    "data": ("cache", "cache_directory"),
    "runtime": ("replicas", "devices", "gpu_memory"),
    "export": tuple(
        field.name
        for field in dataclasses.fields(ExportConfig)
        if field.name != "enabled"
    ),
}


@dataclasses.dataclass(frozen=True)
class _Pin:
    pin: int | None = None
    unpin: bool = False


def main(arguments: list[str]) -> int:
    """`pipeline export RUN` or `pipeline export NAME --pin VERSION`.

    Returns 1 if nothing was published, or if a version failed its checks and was not
    pinned.
    """
    words = list(arguments)
    name = words.pop(0) if words and not words[0].startswith("-") else ""
    pins = any(word.partition("=")[0] in ("--pin", "--unpin") for word in words)
    if {"--help", "-h"} & {*words} and (pins or not name):
        print(_HELP)
        return 0
    if not name:
        hint = command_line.suggest_run("")
        raise UsageError(
            f"{PROGRAM} needs a run, or NAME --pin VERSION; {hint}; see --help"
        )
    require_path(Path(name), "RUN or NAME")
    if pins:
        return _pin(name, words)
    return export_again(configure(Path(name), words))


def configure(path: Path, words: list[str]) -> Config:
    """The config of a run with the changes for this export; does not import TensorFlow.

    Raises UsageError if there is no run to export, or for an option that would change
    the model.
    """
    run = RunDirectory(path)
    command_line.config_file(path)
    stored = run.examples.is_file()  # it began with Python objects
    if "--help" in words or "-h" in words:
        config = command_line.read(run.config, names_only=stored)
        allowed = _allowed(config)
        print(help_text.page(f"{PROGRAM} {path}", _ABOUT, config, only=allowed))
        sys.exit(0)
    changes = cli_parser.changes(words, Config)
    if "path" in changes.get("source", {}):
        changes["source"]["path"] = Path(" ".join(changes["source"]["path"]))
    task_changes = changes.pop("task", {})
    _require_allowed(changes, _ALLOWED)
    config = command_line.read(run.config, changes.get("source"), names_only=stored)
    _require_allowed({"task": task_changes}, _allowed(config))
    if task_changes:
        changes["task"] = command_line.task_options(task_changes, config)
    changes["export"] = {**changes.get("export", {}), "enabled": True}
    runtime = {**run_directory.ANY_MACHINE, **changes.get("runtime", {})}
    changes["runtime"] = runtime
    config = config.changed(**changes, run_directory=path)
    if stored and config.export.precision != "float32":
        raise UsageError(
            f"--export.precision {config.export.precision}: the metrics of a run with"
            " Python objects are not measured again; pass --export.precision float32"
        )
    if not stored:
        run_directory.require_checkpoint(run)
    preflight.check(config)
    return config


def _allowed(config: Config) -> dict[str, Collection[str]]:
    """The options of `_ALLOWED` and those of the task of a run."""
    return {**_ALLOWED, "task": sorted(registry.changeable_options(config.task.name))}


def _require_allowed(
    changes: Mapping[str, Any], allowed: Mapping[str, Collection[str]]
) -> None:
    for name, value in changes.items():
        if isinstance(value, dict):
            section = name
            options = value
        else:
            section = ""
            options = {name: value}
        if wrong := sorted(options.keys() - allowed.get(section, ())):
            flag = f"--{section}.{wrong[0]}" if section else f"--{wrong[0]}"
            raise UsageError(
                f"{flag.replace('_', '-')} does not apply to an export; remove it"
            )


def export_again(config: Config) -> int:
    """Tests, exports and reports as at the end of a run.

    Returns 1 if nothing was published, or if the version lacks a format.

    Raises UsageError if the data or the checkpoints of the run cannot be used.
    """
    start = time.monotonic()
    run = RunDirectory(Path(str(config.run_directory)))
    with StopSignals().listening(), locks.hold(run.path):
        temp_files.sweep(run_directory.export_directory(config))
        from pipeline.runtime import environment

        # Imports TensorFlow; the modules below do, too
        machine = environment.start(config.runtime)
        from pipeline.export import handoff, run_result

        if run.examples.is_file():  # of a run with Python objects
            result = handoff.export_stored(config, run)
        else:
            trainer = handoff.restore_trainer(config, machine)
            checkpoint = trainer.checkpoint
            incomplete = "" if checkpoint.complete else " (incomplete)"
            steps = f"{checkpoint.step:,} of {trainer.setup.batches.last_step:,} steps"
            say("run", f"{config.recipe} in {run}, trained for {steps}{incomplete}")
            result = handoff.Handoff(trainer, start, writes=False).export_again()
        _record(config, run, result)
        complete = result["export"] and not run_result.left_out(result)
    return 0 if complete else 1


def _record(config: Config, run: RunDirectory, result: dict[str, Any]) -> None:
    """Records the export in the `result.json` of a finished run.

    Leaves the file alone if the export went to another directory.
    """
    try:
        before = safe_io.read_json(run.result)
        same = all(before[name] == result[name] for name in ("steps", "config_digest"))
        version = before["export"] or run_directory.export_directory(config) / "1"
        directory = Path(version).parent
    except (OSError, ValueError, LookupError, TypeError):
        return
    if same and result["export"] and directory == Path(result["export"]).parent:
        new = {name: result[name] for name in ("export", "verification")}
        files.write_json(run.result, {**before, **new})


def _pin(name: str, words: list[str]) -> int:
    options = cli_parser.changes(words, _Pin)
    version = options.get("pin")
    if (version is None) == (not options.get("unpin")):
        raise UsageError("pass either --pin VERSION, such as --pin 3, or --unpin")
    models = ExportConfig().directory
    model = models / name if repository.versions(models / name) else Path(name)
    versions = repository.versions(model)
    if not versions:
        paths = models.glob("[!.]*")
        names = [path.name for path in paths if repository.versions(path)]
        raise UsageError(
            f"{models} has no exported model {name!r}; {suggest(name, names)}"
        )
    if version is not None:
        if version not in versions:
            numbers = ", ".join(map(str, sorted(versions)))
            raise UsageError(
                f"--pin {version}: {model} has only the versions {numbers}"
            )
        from pipeline.export.verification import verify

        outcome = verify(versions[version])
        if not outcome.passed:
            print(f"{outcome}\nNOT pinned: {versions[version]} must not be served")
            return 1
    repository.pin(model, version)
    say("pinned", "nothing" if version is None else versions[version])
    config = model / repository.CONFIG
    served = repository.live(model)
    say("served", f"{served}, by servers that read {config}, as in SERVING.md")
    return 0


if __name__ == "__main__":
    run_command(main)
