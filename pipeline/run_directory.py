"""Where everything of a run lies, what it began with, and whether it can be taken up again."""

import fcntl
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.config import HARMLESS, Config
from pipeline.errors import UsageError

RUNS = Path("runs")
# Files that may lie beside the models: configuration of TensorFlow Serving and of its containers.
_SERVER_FILES = {".config", ".yaml", ".yml"}


class RunDirectory:
    """The files of one run; a folder is a run if it holds a `config.json`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.facts = path / "facts.json"
        self.source = path / "source.json"
        self.splits = path / "splits.npz"
        self.decisions = path / "decisions.json"
        self.log = path / "log.jsonl"
        self.result = path / "result.json"
        self.manifest = path / "manifest.jsonl"
        self.gallery = path / "gallery.html"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes out; the kernel lets go of it when this one ends, however it ends.

        Raises UsageError if another holds it.
        """
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"{self} is in use by another process; give another folder"
                ) from None
            yield


def check(config: Config) -> None:
    """Raises UsageError unless the run and the export can be written where the config says.

    Cheap, and done before TensorFlow is imported; nothing is created.
    """
    try:
        _check(config)
    except OSError as error:
        raise UsageError(f"cannot use {error.filename}: {error.strerror}") from None


def _check(config: Config) -> None:
    files.check_writable(config.run_directory or RUNS, "--run-directory")
    if config.source.name == "folder" and not config.dry_run:
        for flag, path in {
            "--run-directory": config.run_directory or RUNS,
            "--export.directory": config.export.directory,
            "--data.cache-directory": config.data.cache_directory or Path.home() / ".cache",
        }.items():
            files.require_outside(path, config.source.path, flag)
    if config.run_directory is not None:
        _check_resumable(config, RunDirectory(config.run_directory))
    if config.export.enabled:
        target = export_directory(config)
        files.check_writable(target, "--export.directory")
        found = [p for p in config.export.directory.glob("[!.]*") if p.is_file()]
        names = [p.name for p in found if p.name != "README.md" and p.suffix not in _SERVER_FILES]
        if names:
            raise UsageError(
                f"--export.directory: {config.export.directory} is no folder of models: "
                f"it holds {min(names)!r}; choose another"
            )
        foreign = _foreign(target)
        if foreign:
            raise UsageError(
                f"{target} holds {foreign[0]!r}, which is no exported version; "
                "choose another --export.directory or --export.name"
            )


def create(config: Config) -> RunDirectory:
    """The run directory of this config: the given one (made, or resumed), or the next free one."""
    if config.run_directory is not None:
        config.run_directory.mkdir(parents=True, exist_ok=True)
        run = RunDirectory(config.run_directory)
    else:
        run = RunDirectory(files.make_next(RUNS, config.recipe))
    # Without its own place: a saved config starts another run, it does not come back to this one.
    files.write_json(run.config, {**config.as_json(), "run_directory": None})
    return run


def frozen(path: Path | None, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The facts that a run began with; those of now if it is new.

    Raises UsageError if they differ by more than rounding: other classes, sizes, means.
    """
    run = RunDirectory(path) if path else None
    if run is None or not run.facts.exists():
        return facts
    try:
        before = json.loads(run.facts.read_text(encoding="utf-8"))
        for name in {**before, **facts}:
            old, new = before.get(name), facts.get(name)
            if not _alike(old, new):
                raise UsageError(
                    f"{name.replace('_', ' ')} of the data are not those that the run in {run} "
                    f"began with: {_difference(old, new)}; bring the data back, or give a new "
                    "--run-directory"
                )
    except (OSError, ValueError, TypeError, RecursionError):
        raise UsageError(f"{run.facts} is damaged; start again in a new --run-directory") from None
    return before


def _alike(old: Any, new: Any) -> bool:
    """Equal, numbers up to rounding: another machine adds up in another order."""
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(map(_alike, old, new))
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=1e-5, abs_tol=1e-9)
    return old == new


def _difference(old: Any, new: Any) -> str:
    """In a few words; of lists only what is in one of them."""
    if isinstance(old, list) and isinstance(new, list):
        gone, added = [v for v in old if v not in new], [v for v in new if v not in old]
        if gone or added:
            old, new = gone, added
    return f"{str(old)[:100]} then, {str(new)[:100]} now"


def finished(config: Config, run: RunDirectory, step: int) -> dict[str, Any] | None:
    """The result of a run that needs nothing more after `step`: its export, if it is to have one,
    is there."""
    try:
        result = json.loads(run.result.read_text(encoding="utf-8"))
        version = result["export"]
        if result["steps"] != step:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    exported = version is not None and Path(version, "saved_model.pb").is_file()
    return result if exported or not config.export.enabled else None


def decided(path: Path | None, name: str) -> str | None:
    """The value of an automatic choice that a run made when it began; None in a new run."""
    if path is None:
        return None
    try:
        decisions = json.loads(RunDirectory(path).decisions.read_text(encoding="utf-8"))
        return next((d["value"] for d in decisions if d["name"] == name), None)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def export_directory(config: Config) -> Path:
    """The folder whose sub-folders are the versions of this model."""
    return config.export.directory / (config.export.name or config.recipe)


def _check_resumable(config: Config, run: RunDirectory) -> None:
    found = sorted(p.name for p in run.path.glob("*") if p.name != ".lock")
    if not found:
        return
    if not run.config.is_file():
        raise UsageError(
            f"--run-directory: {run} holds {found[0]!r} but no run; give a new or an empty folder"
        )
    now = config.as_json()
    try:
        before = json.loads(run.config.read_text(encoding="utf-8"))
        before = {**before, **{n: dict(before[n]) for n in now if isinstance(now[n], dict)}}
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UsageError(f"--run-directory: {run.config} is damaged; give a new folder") from None
    different = [
        f"--{section}.{name}".replace("_", "-")
        for section in now
        if isinstance(now[section], dict) and section != "log"
        for name in now[section]
        if name not in HARMLESS.get(section, ())
        and before.get(section, {}).get(name) != now[section][name]
    ]
    different += [name for name in ("recipe", "task") if before.get(name) != now[name]]
    if different:
        raise UsageError(
            f"--run-directory: {run} is a run with another {different[0]}; "
            "repeat its command to resume it, or give a new folder"
        )


def _foreign(target: Path) -> list[str]:
    """Names in a model's folder that are no versions; hidden files are nobody's business."""
    names = sorted(p.name for p in target.glob("*") if not p.name.startswith("."))
    return [
        n for n in names if not (files.is_version(n) and (target / n / "saved_model.pb").is_file())
    ]
