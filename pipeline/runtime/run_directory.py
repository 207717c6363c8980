"""The files of a run, its original options, and whether it can be resumed."""

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config import resume_policy
from pipeline.config.config import RUNS, Config
from pipeline.utils import files, locks, safe_io, temp_files
from pipeline.utils.errors import UsageError

STEP = re.compile(r"step-(?:[0-9]{8}|[1-9][0-9]{8,})")
"""The name of a checkpoint."""


class RunDirectory:
    """The files of one run; a directory with a `config.json` is a run."""

    def __init__(
        self, path: Path, changes: Sequence[resume_policy.Change] = ()
    ) -> None:
        self.path = path
        self.changes = changes
        """Options that differ from the original ones, accepted by `--force`."""
        self.config = path / "config.json"
        self.metadata = path / "metadata.json"
        self.source = path / "source.json"
        self.splits = path / "splits.npz"
        self.decisions = path / "decisions.json"
        self.log = path / "log.jsonl"
        self.bad_steps = path / "bad_steps.jsonl"
        self.hang = path / "hang.txt"
        self.result = path / "result.json"
        self.model = path / "model.keras"
        self.examples = path / "examples.npz"
        self.manifest = path / "manifest.jsonl"
        self.gallery = path / "gallery.html"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"

    def __str__(self) -> str:
        return str(self.path)


def steps(checkpoints: Path) -> list[int]:
    """The steps of the checkpoints in a directory, in ascending order."""
    found = (path for path in checkpoints.glob("step-*") if STEP.fullmatch(path.name))
    return sorted(
        int(path.name.removeprefix("step-")) for path in found if path.is_dir()
    )


@contextlib.contextmanager
def opened(config: Config) -> Iterator[RunDirectory]:
    """The run directory of this config, locked: the given one, new or resumed, or the
    next free.

    Files that killed processes left unfinished there, or beside the exported models,
    are removed.

    Raises UsageError if another process uses it, or has started another run there
    meanwhile.
    """
    if config.run_directory is not None:
        config.run_directory.mkdir(parents=True, exist_ok=True)
        run = RunDirectory(config.run_directory)
    else:
        run = RunDirectory(files.make_next(RUNS, config.name))
    with locks.hold(run.path):
        run.changes = changes(config, run)
        for folder in (run.path, run.checkpoints, export_directory(config)):
            temp_files.sweep(folder)
        # Without its own path: `--config` with a saved config starts a new run.
        values = {**config.as_json(), "run_directory": None, "force": False}
        files.write_json(run.config, values)
        yield run


def is_new(config: Config) -> bool:
    """Whether the run directory of this config does not contain a run yet."""
    path = config.run_directory
    return path is None or not RunDirectory(path).config.exists()


def with_saved_plan(config: Config, planned: Sequence[str]) -> Config:
    """The config with the values that the options in `planned` have in its run;
    unchanged if the run is new or cannot be read.
    """
    if config.run_directory is None or not planned:
        return config
    changes: dict[str, dict[str, Any]] = {}
    reasons = {}
    try:
        saved = safe_io.read_json(RunDirectory(config.run_directory).config)
        for name in planned:
            section, _, option = name.partition(".")
            options = (option,) if option else ("name", "options")
            values = {option: saved[section][option] for option in options}
            changes.setdefault(section, {}).update(values)
            if name in saved["reasons"]:  # the user had not set it at the start
                reasons[name] = saved["reasons"][name]
        config = config.changed(**changes)
    except (OSError, LookupError, ValueError, TypeError):  # `changes` tells why
        return config
    return dataclasses.replace(config, reasons=reasons)


def frozen(path: Path | None, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The original metadata of a run; the given metadata if the run is new.

    Raises UsageError if they differ by more than rounding errors: in classes, sizes or
    means.
    """
    run = RunDirectory(path) if path else None
    if run is None or not run.metadata.exists():
        return metadata
    try:
        before = safe_io.read_json(run.metadata)
        changed = [
            n
            for n in {**before, **metadata}
            if not _alike(before.get(n), metadata.get(n))
        ]
    except (OSError, ValueError, TypeError):
        raise UsageError(
            f"{run.metadata} is damaged; start again in a new --run-directory"
        ) from None
    if changed:
        raise UsageError(
            f"{changed[0].replace('_', ' ')} of the data have changed since the start"
            f" of the run in {run}; restore the data, or choose a new --run-directory"
        )
    return before


def _alike(old: Any, new: Any) -> bool:
    """Whether values are equal, floats up to rounding: other machines sum in another
    order.
    """
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(map(_alike, old, new))
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=1e-5, abs_tol=1e-9)
    return old == new


def decided(path: Path | None, name: str) -> str | None:
    """The value of an automatic choice at the start of a run; None in a new run."""
    if path is None:
        return None
    try:
        decisions = safe_io.read_json(RunDirectory(path).decisions)
        return next((d["value"] for d in decisions if d["name"] == name), None)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def export_directory(config: Config) -> Path:
    """The directory whose subdirectories are the versions of this model."""
    return config.export.directory / config.name


def changes(config: Config, run: RunDirectory) -> Sequence[resume_policy.Change]:
    """Options that differ from the original ones, accepted by `--force`; none if the
    run is new.

    Raises UsageError for any other change, or if the directory contains something else.
    """
    found = sorted(p.name for p in run.path.glob("*") if p.name != locks.NAME)
    found = [name for name in found if not temp_files.is_ours(name)]
    if not found:
        return ()
    if not run.config.is_file():
        raise UsageError(
            f"--run-directory: {run} contains {found[0]!r} but no run; choose an empty"
            " directory"
        )
    now = config.as_json()
    try:
        before = safe_io.read_json(run.config)
        changes = resume_policy.changes(before, now)
    except (OSError, ValueError, TypeError, AttributeError):
        raise UsageError(
            f"--run-directory: {run.config} is damaged; choose a new directory"
        ) from None
    if changes and not (
        config.force and all(change.can_be_forced for change in changes)
    ):
        raise UsageError(resume_policy.refusal(str(run), changes))
    return changes
