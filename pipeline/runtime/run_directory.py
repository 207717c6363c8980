"""The files of a run, its original options, and whether it can be resumed."""

import contextlib
import dataclasses
import math
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config import registry, resume_policy
from pipeline.config.config import FORMAT, RUNS, Config
from pipeline.utils import files, locks, safe_io, temp_files
from pipeline.utils.errors import UsageError

STEP = re.compile(r"step-(?:[0-9]{8}|[1-9][0-9]{8,})")
"""The name of a checkpoint."""
ANY_MACHINE: dict[str, Any] = {
    "devices": "auto",
    "gpu_memory": None,
    "require_gpu": False,
}
"""Options of `runtime` with which any machine can restore a run."""


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
        self.class_weights = path / "class_weights.json"
        self.initial_weights = path / "initial_weights.npz"
        self.cross_validation = path / "cross_validation.json"
        self.decisions = path / "decisions.json"
        self.log = path / "log.jsonl"
        self.bad_steps = path / "bad_steps.jsonl"
        self.hang = path / "hang.txt"
        self.result = path / "result.json"
        self.model = path / "model.keras"
        self.examples = path / "examples.npz"
        self.losses = path / "losses.json"
        self.manifest = path / "manifest.jsonl"
        self.gallery = path / "gallery.html"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"
        self.pictures = path / "pictures"
        self.folds = path / "folds"

    def __str__(self) -> str:
        return str(self.path)


def steps(checkpoints: Path) -> list[int]:
    """Returns the steps of the checkpoints in a directory, in ascending order."""
    steps = []
    for path in checkpoints.glob("step-*"):
        if STEP.fullmatch(path.name) and path.is_dir():
            steps.append(int(path.name.removeprefix("step-")))
    return sorted(steps)


def require_checkpoint(run: RunDirectory) -> None:
    """Raises UsageError if a run has no checkpoint, or one of an earlier version."""
    with contextlib.suppress(OSError, ValueError):  # whoever reads it tells why
        require_format(run, safe_io.read_json(run.config))
    if not steps(run.checkpoints):
        resume = shlex.join(["--resume", str(run)])
        raise UsageError(
            f"{run} has no checkpoint yet; train it: pipeline fit {resume}"
        )


def require_format(run: RunDirectory, values: Any) -> None:
    """Raises UsageError if an earlier version has written the config of a run."""
    if isinstance(values, dict) and values.get("format") != FORMAT:
        raise UsageError(
            f"{run} was started by an earlier version; start it again in a new"
            " --run-directory"
        )


@contextlib.contextmanager
def open_run(config: Config) -> Iterator[RunDirectory]:
    """Creates or reopens the run directory of a config, and locks it.

    Without `run_directory`, this is the next free directory. Removes files that killed
    processes left unfinished there, or beside the exported models.

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
        # Without the path: `--config` with a saved config starts a new run.
        values = {**config.as_json(), "run_directory": None, "force": False}
        files.write_json(run.config, values)
        yield run


def begin(config: Config) -> Config:
    """The config with its run directory, which is created if it is a new one."""
    if not is_new(config):
        return config
    with open_run(config) as run:
        return config.changed(run_directory=run.path)


def is_new(config: Config) -> bool:
    """Whether the run directory of this config does not contain a run yet."""
    path = config.run_directory
    return path is None or not RunDirectory(path).config.exists()


def with_saved_plan(config: Config, planned: Sequence[str]) -> Config:
    """Sets the options in `planned` to their values in the run.

    Returns the config unchanged if the run is new or cannot be read.
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


def original_metadata(
    run: RunDirectory,
    metadata: Mapping[str, Any],
    learned: Collection[str],
    changeable: Collection[str],
) -> Mapping[str, Any] | None:
    """Returns the metadata that a run began with; None if the run is new.

    `metadata` is that of the source now; the run has learned the entries `learned` from
    its training examples. The entries `changeable`, of options of the task, are those
    of `metadata`. Raises UsageError if the other entries differ by more than rounding
    errors: classes or sizes.
    """
    if not run.metadata.exists():
        return None
    try:
        before = safe_io.read_json(run.metadata)
        for name in changeable:
            before.pop(name, None)
            if name in metadata:
                before[name] = metadata[name]
        names = sorted({**before, **metadata}.keys() - {*learned})
        changed = [n for n in names if not _is_close(before.get(n), metadata.get(n))]
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


def _is_close(old: Any, new: Any) -> bool:
    """Whether values are equal up to rounding, as other machines sum differently."""
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(map(_is_close, old, new))
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=1e-5, abs_tol=1e-9)
    return old == new


def saved_decision(path: Path | None, name: str) -> str | None:
    """Returns an automatic choice from the start of a run; None in a new run."""
    if path is None:
        return None
    try:
        decisions = safe_io.read_json(RunDirectory(path).decisions)
        return next((d["value"] for d in decisions if d["name"] == name), None)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def export_directory(config: Config) -> Path:
    """Returns the directory of the versions of this model."""
    return config.export.directory / config.name


def changes(config: Config, run: RunDirectory) -> Sequence[resume_policy.Change]:
    """Returns changed options that `--force` accepts; none if the run is new.

    Raises UsageError for any other change, or if the directory contains something else.
    """
    names = sorted(path.name for path in run.path.glob("*") if path.name != locks.NAME)
    names = [name for name in names if not temp_files.is_ours(name)]
    if not names:
        return ()
    if not run.config.is_file():
        raise UsageError(
            f"--run-directory: {run} contains {names[0]!r} but no run; choose an empty"
            " directory"
        )
    try:
        before = safe_io.read_json(run.config)
        require_format(run, before)
        changeable = registry.changeable_options(config.task.name)
        changes = resume_policy.changes(before, config.as_json(), changeable)
    except (OSError, ValueError, TypeError, AttributeError):
        raise UsageError(
            f"--run-directory: {run.config} is damaged; choose a new directory"
        ) from None
    accepted = config.force and all(change.can_be_forced for change in changes)
    if changes and not accepted:
        raise UsageError(resume_policy.refusal(str(run), changes))
    return changes
