"""Where everything of a run lies, what it began with, and whether it can be taken up again."""

import errno
import math
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.config import resume_policy
from pipeline.config.config import Config
from pipeline.utils import files, locks, safe_io, temp_files
from pipeline.utils.errors import UsageError

RUNS = Path("runs")
STEP = re.compile(r"step-(?:[0-9]{8}|[1-9][0-9]{8,})")
"""The name of a checkpoint."""
IN_USE = "wait until it has ended, or give another --run-directory"


class RunDirectory:
    """The files of one run; a folder is a run if it holds a `config.json`."""

    def __init__(self, path: Path, changes: Sequence[resume_policy.Change] = ()) -> None:
        self.path = path
        self.changes = changes
        """Options that are not those it began with, as `--force` accepts."""
        self.config = path / "config.json"
        self.metadata = path / "metadata.json"
        self.source = path / "source.json"
        self.splits = path / "splits.npz"
        self.decisions = path / "decisions.json"
        self.log = path / "log.jsonl"
        self.bad_steps = path / "bad_steps.jsonl"
        self.hang = path / "hang.txt"
        self.result = path / "result.json"
        self.manifest = path / "manifest.jsonl"
        self.gallery = path / "gallery.html"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"

    def require_kinds(self) -> None:
        """Raises UsageError for a folder, a pipe, ... where a file belongs, and the other way."""
        for path in (self.metadata, self.source, self.splits):
            if not _fits(path, stat.S_ISREG):
                raise UsageError(f"{path} is damaged; start again in a new --run-directory")
        told = (self.decisions, self.log, self.bad_steps, self.hang, self.result)
        for path in (*told, self.manifest, self.gallery):
            if not _fits(path, stat.S_ISREG):
                raise UsageError(f"--run-directory: {path} is no regular file; remove it")
        for path in (self.checkpoints, self.tensorboard):
            if not _fits(path, stat.S_ISDIR):
                raise UsageError(
                    f"--run-directory: {path} is no folder; bring it back, or remove what is there"
                )

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes out; the kernel lets go of it when this one ends, however it ends.

        Raises UsageError if another holds it, naming its number, host and start.
        """
        with locks.held(self.path / ".lock", str(self), IN_USE):
            yield


def steps(checkpoints: Path) -> list[int]:
    """Steps that have a checkpoint in a folder, in rising order; copies and notes are not meant."""
    found = (path for path in checkpoints.glob("step-*") if STEP.fullmatch(path.name))
    return sorted(int(path.name.removeprefix("step-")) for path in found if path.is_dir())


def _fits(path: Path, kind: Callable[[int], bool]) -> bool:
    """Whether what links lead to, if anything, is of this kind; nothing is opened."""
    try:
        return kind(path.stat().st_mode)
    except FileNotFoundError:  # a file replaces a link that leads nowhere, a folder cannot
        return kind is stat.S_ISREG or not path.is_symlink()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False


@contextmanager
def opened(config: Config) -> Iterator[RunDirectory]:
    """The run directory of this config, locked: the given one (made, or resumed), or the next free.

    What dead processes have left unfinished in it and beside the exported models is removed.

    Raises UsageError if another process holds it, or has meanwhile made another run there.
    """
    if config.run_directory is not None:
        config.run_directory.mkdir(parents=True, exist_ok=True)
        run = RunDirectory(config.run_directory)
    else:
        run = RunDirectory(files.make_next(RUNS, config.recipe))
    with run.locked():
        run.changes = changes(config, run)
        for folder in (run.path, run.checkpoints, export_directory(config)):
            temp_files.sweep(folder)
        # Without its own place: a saved config starts another run, it does not come back.
        values = {**config.as_json(), "run_directory": None, "force": False}
        files.write_json(run.config, values)
        yield run


def frozen(path: Path | None, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata that a run began with; those of now if it is new.

    Raises UsageError if they differ by more than rounding: other classes, sizes, means.
    """
    run = RunDirectory(path) if path else None
    if run is None or not run.metadata.exists():
        return metadata
    try:
        before = safe_io.read_json(run.metadata)
        if not metadata.keys() <= before.keys():
            raise ValueError
        for name in {**before, **metadata}:
            old, new = before.get(name), metadata.get(name)
            if not _alike(old, new):
                raise UsageError(
                    f"{name.replace('_', ' ')} of the data are not those that the run in {run} "
                    f"began with: {_difference(old, new)}; bring the data back, or give a new "
                    "--run-directory"
                )
    except (OSError, ValueError, TypeError, AttributeError):
        raise UsageError(
            f"{run.metadata} is damaged; start again in a new --run-directory"
        ) from None
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


def decided(path: Path | None, name: str, known: Collection[str] | None = None) -> str | None:
    """The value of an automatic choice that a run made when it began; None in a new run.

    Args:
        path: Folder of the run.
        name: Of the decision.
        known: What can be chosen; anything else in the file counts as no choice. None: any text.
    """
    if path is None:
        return None
    try:
        decisions = safe_io.read_json(RunDirectory(path).decisions)
        value = next((d["value"] for d in decisions if d["name"] == name), None)
        return value if isinstance(value, str) and (known is None or value in known) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def earlier_splits(config: Config) -> Path | None:
    """The file that `--data.splits` means, which may be damaged; None if it is not given.

    A run that is resumed does without: it has written its own.

    Raises UsageError if there is none.
    """
    path = config.data.splits
    if path is None or (path.suffix == ".npz" and path.is_file()):
        return path
    own = RunDirectory(config.run_directory).splits if config.run_directory else None
    found = next((p for p in (RunDirectory(path).splits, own) if p and p.is_file()), None)
    if found is None:
        raise UsageError(
            f"--data.splits: {path} is not the folder of a run, and not its splits.npz; give the "
            "run whose splits are to be kept"
        )
    return found


def export_directory(config: Config) -> Path:
    """The folder whose sub-folders are the versions of this model."""
    return config.export.directory / (config.export.name or config.recipe)


def changes(config: Config, run: RunDirectory) -> Sequence[resume_policy.Change]:
    """Options that are not as the run in this folder began, which `--force` accepts; none if new.

    Raises UsageError for any other, and if it is no run.
    """
    found = sorted(p.name for p in run.path.glob("*") if p.name != ".lock")
    found = [name for name in found if not temp_files.is_ours(name)]
    if not found:
        return ()
    if not run.config.is_file():
        raise UsageError(
            f"--run-directory: {run} contains {found[0]!r} but no run; choose a new or empty directory"
        )
    run.require_kinds()
    missing = [p.name for p in (run.metadata, run.splits, run.source) if not p.exists()]
    if missing and steps(run.checkpoints):
        raise UsageError(
            f"--run-directory: {run} has checkpoints but no {missing[0]}, by which its data are "
            "known; bring it back, or give a new folder"
        )
    now = config.as_json()
    try:
        before = files.collapse_home(safe_io.read_json(run.config))
        sections = [name for name, value in now.items() if isinstance(value, dict)]
        if not all(isinstance(before[name], dict) for name in sections):
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"--run-directory: {run.config} is damaged; give a new folder") from None
    changes = resume_policy.changes(before, now)
    if changes and not (config.force and all(change.can_be_forced for change in changes)):
        raise UsageError(resume_policy.refusal(str(run), changes))
    return changes
