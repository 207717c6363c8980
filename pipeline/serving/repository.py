"""From a proved folder to its version number: the gate before it, the pruning after it."""

import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from pipeline.config.sections import Export
from pipeline.serving import models_config, version_manifest
from pipeline.utils import files, locks, temp_files
from pipeline.utils.errors import UsageError

REFUSED = ".refused"
"""Where a version stays that the gate holds back: hidden, beside the others, until the next one."""
# What every export of this package holds; a folder without them is somebody else's.
_OURS = ("saved_model.pb", "assets.extra/golden.npz")


@dataclasses.dataclass(frozen=True)
class Published:
    """What became of a folder."""

    directory: Path
    """Its version, or where it stays."""
    refused: bool = False
    quality: str | None = None
    """What the gate found; None where it was not asked."""
    notes: tuple[str, ...] = ()
    """Lines that a person should read."""


def publish(
    folder: Path,
    model: Path,
    options: Export,
    selection_metric: tuple[str, int],
    ready: Callable[[], None] = lambda: None,
) -> Published:
    """Gives a finished folder the next version number, unless it is worse than what is served.

    Of several processes one is inside at a time: what one compares with, another cannot replace or
    delete.

    Args:
        folder: Of `temp_files.folder(model)`, whole and proved; its manifest holds the metrics.
        model: The folder of the versions.
        options: `tolerance` and `keep` are used.
        selection_metric: As `Task.selection_metric`.
        ready: Called before the version can be seen, unless servers will not take it: it is held
            back, or another one is pinned.

    Raises:
        UsageError: No number is left, or a `models.config` cannot be read; nothing was published.
    """
    with locks.in_turn(model):
        good, quality = True, None
        before = None if options.tolerance is None else live(model)
        if before is not None:
            good, quality = compared(folder, before, options.tolerance, selection_metric)
        if not good:
            aside = model / REFUSED
            temp_files.remove(aside)
            files.publish_as(folder, aside)
            return Published(aside, True, quality)
        pinned = models_config.pinned(model)
        if not pinned:
            ready()
        version = files.publish(folder, model)
        notes = []
        if pinned:
            which = ", ".join(map(str, pinned))
            again = f"python -m pipeline.export {shlex.quote(model.name)} --unpin"
            if model.parent != Export.directory:
                again += f" --export.directory {shlex.quote(str(model.parent))}"
            notes.append(f"pinned     to {which}: {again} has servers take {version.name}")
        removed = prune(model, options.keep, pinned) if options.keep else []
        if removed:
            which = ", ".join(map(str, removed))
            notes.append(f"deleted    version {which} (--export.keep {options.keep})")
    return Published(version, False, quality, tuple(notes))


def live(model: Path) -> Path | None:
    """The version that a request gets which names none: the highest pinned, else the highest.

    None where none is there, or none of those to which `models.config` pins the model.
    """
    there = files.versions(model)
    pinned = models_config.pinned(model)
    number = max(there.keys() & set(pinned) if pinned else there, default=None)
    return None if number is None else there[number]


def compared(folder: Path, before: Path, tolerance: float, by: tuple[str, int]) -> tuple[bool, str]:
    """Whether a version is at most `tolerance` worse than the one before it, and that in words.

    Where that one tells of no such metric, as another task's, there is nothing to be worse than.
    A new one has to tell, of the same split.
    """
    name, sign = by
    classes = [version_manifest.about(version).get("class_names") for version in (folder, before)]
    if None not in classes and classes[0] != classes[1]:
        return False, f"it has other classes than version {before.name}, which is served"
    (new, split), (old, other) = judged(folder, name), judged(before, name)
    if old is None:
        return True, f"version {before.name}, which is served, tells of no {name}"
    there = f"version {before.name}, which is served, has {old:.4f}"
    if new is None:
        return False, f"{name} is not told, or no number; {there}"
    if split != other:
        return False, f"{split} {name} {new:.4f} cannot be compared; {there} in {other}"
    worse = sign * (old - new)
    text = f"{split} {name} {new:.4f}; {there}"
    if worse <= tolerance + 1e-9:  # 0.98 - 0.97 is more than 0.01 in floating point
        return True, text
    return False, f"{text}: worse by {worse:.4f}, --export.tolerance is {tolerance:g}"


def judged(version: Path, name: str) -> tuple[float | None, str]:
    """A metric as a version's manifest tells it, and of which split; None where it tells of no
    finite number."""
    manifest = version_manifest.about(version)
    metrics, split = manifest.get("metrics"), str(manifest.get("judged", ""))
    value = metrics.get(name) if isinstance(metrics, dict) else None
    good = isinstance(value, int | float) and not isinstance(value, bool)
    good = good and abs(value) <= sys.float_info.max  # JSON's whole numbers have no end
    return (float(value) if good else None), split


def prune(model: Path, keep: int, pinned: tuple[int, ...] = ()) -> list[int]:
    """Deletes the versions of this package but for the `keep` highest and the pinned ones.

    Each is gone in one rename. A folder that is not ours, or a link, is left alone.

    Returns: The numbers of those that were deleted, in rising order.
    """
    ours = {n: path for n, path in files.versions(model).items() if _is_ours(path)}
    spared = {*sorted(ours)[-keep:], *pinned}
    removed = sorted(ours.keys() - spared)
    for number in removed:
        temp_files.remove(ours[number])
    return removed


def pin(model: Path, version: int | None) -> None:
    """Has servers take this version, or with None the newest again; see `models_config.pin`.

    Raises UsageError if there is no such version.
    """
    with locks.in_turn(model):
        require(model, version)
        models_config.pin(model, version)


def require(model: Path, version: int | None) -> Path | None:
    """Folder of a version; raises UsageError if it is not there. None of None."""
    there = files.versions(model)
    if version is not None and version not in there:
        known = ", ".join(map(str, sorted(there)))
        raise UsageError(f"--pin {version}: {model} has no such version; there are: {known}")
    return None if version is None else there[version]


def _is_ours(path: Path) -> bool:
    return not path.is_symlink() and all((path / name).is_file() for name in _OURS)


# Files that may lie there before any version does: configuration of TensorFlow Serving and of its
# containers, and words on them.
_SERVER_FILES = {".config", ".yaml", ".yml", ".md"}


def check_folder(directory: Path, model: Path) -> None:
    """Raises UsageError where one of the folders is there, and no such folder.

    Beside versions there may be all that a server passes by, as the pictures are that it is asked
    about; what has a number for a name must be a version.

    Args:
        directory: Of all models.
        model: Of the versions of this one.
    """
    found = list(directory.glob("[!.]*"))
    names = [p.name for p in found if p.is_file() and p.suffix not in _SERVER_FILES]
    if names and not any(_versions(p.glob("*")) for p in found if p.is_dir()):
        raise UsageError(
            f"--export.directory: {directory} is no folder of models: it holds {min(names)!r}; "
            "choose another"
        )
    found = sorted(model.glob("[!.]*"))
    versions = _versions(found)
    for path in found:
        expected = path.is_file() and path.suffix in _SERVER_FILES
        if path in versions or expected or (versions and not files.is_version(path.name)):
            continue
        raise UsageError(
            f"{model} holds {path.name!r}, which is no exported version; move it away, or choose "
            "another --export.directory or --export.name"
        )


def _versions(found: Iterable[Path]) -> list[Path]:
    return [p for p in found if files.is_version(p.name) and (p / "saved_model.pb").is_file()]


def chosen(directory: Path) -> Path:
    """A version directory: the given one, or in a model's folder that which a server would answer
    with, the pinned one or the newest.

    Raises:
        UsageError: There is none.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is no folder; give a version, such as saved_models/digits/1")
    if any(
        (directory / name).is_file()
        for name in ("saved_model.pb", version_manifest.GOLDEN, version_manifest.MANIFEST)
    ):
        return directory
    if not files.versions(directory):
        raise UsageError(f"{directory} holds no exported version, such as saved_models/digits/1")
    newest = live(directory)
    if newest is None:
        pinned = ", ".join(map(str, models_config.pinned(directory)))
        # As a path, which no name in saved_models/ can be.
        path = directory if len(directory.parts) > 1 else f"./{directory}"
        raise UsageError(
            f"{directory / models_config.NAME} pins version {pinned}, which is not there: a "
            "server would answer nothing; python -m pipeline.export "
            f"{shlex.quote(str(path))} --unpin takes the newest"
        )
    return newest
