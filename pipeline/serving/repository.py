"""The repository of versions of a model: publishing, pinning, pruning, and the quality gate."""

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
"""Hidden name of the last version that the gate refused, until the next one is published."""
# Every export of this package has these files.
_EXPORTED = ("saved_model.pb", str(version_manifest.GOLDEN))
# Files that may be there before the first version: configuration of the server, and notes.
_SERVER_FILES = {".config", ".yaml", ".yml", ".md"}


@dataclasses.dataclass(frozen=True)
class Published:
    """The result of publishing a version."""

    directory: Path
    """The new version, or where the refused one is."""
    refused: bool = False
    quality: str | None = None
    """The comparison with the served version; None if it was not asked for."""
    notes: tuple[str, ...] = ()
    """Lines for the user."""


def publish(
    folder: Path,
    model: Path,
    options: Export,
    selection_metric: tuple[str, int],
    ready: Callable[[], None] = lambda: None,
) -> Published:
    """Gives a verified export the next version number, unless it is worse than the served version.

    Only one process publishes at a time, so that the version it compares with stays in place.

    Args:
        folder: The export, in a directory made by `temp_files.folder(model)`; its manifest contains
            the metrics.
        model: The directory of the versions.
        options: Only `tolerance` and `keep` are used.
        selection_metric: As `Task.selection_metric`.
        ready: Called before the version becomes visible, unless servers will not load it because it
            is refused or another one is pinned.

    Raises:
        UsageError: No version number is left, or `models.config` cannot be read. Nothing was
            published.
    """
    with locks.in_turn(model):
        good, quality = True, None
        served = None if options.tolerance is None else live(model)
        if served is not None and options.tolerance is not None:
            good, quality = _compare(folder, served, options.tolerance, selection_metric)
        if not good:
            temp_files.remove(model / REFUSED)
            files.publish_as(folder, model / REFUSED)
            return Published(model / REFUSED, True, quality)
        pinned = models_config.pinned(model)
        if not pinned:
            ready()
        version = files.publish(folder, model)
        notes = []
        if pinned:
            unpin = f"python -m pipeline.export {shlex.quote(model.name)} --unpin"
            if model.parent != Export.directory:
                unpin += f" --export.directory {shlex.quote(str(model.parent))}"
            notes.append(f"pinned     to {_list(pinned)}: {unpin} serves {version.name}")
        if options.keep and (removed := prune(model, options.keep, pinned)):
            notes.append(f"deleted    version {_list(removed)} (--export.keep {options.keep})")
    return Published(version, False, quality, tuple(notes))


def live(model: Path) -> Path | None:
    """Returns the version that a server uses by default: the highest pinned one, else the highest.

    Returns None if there are no versions, or none of the pinned ones exists.
    """
    versions = files.versions(model)
    pinned = models_config.pinned(model)
    number = max(versions.keys() & set(pinned) if pinned else versions, default=None)
    return None if number is None else versions[number]


def _compare(new: Path, served: Path, tolerance: float, by: tuple[str, int]) -> tuple[bool, str]:
    """Returns whether a version is at most `tolerance` worse than the served one, and why.

    A served version without the metric, such as that of another task, cannot be worse.
    """
    name, sign = by
    classes = [version_manifest.about(version).get("class_names") for version in (new, served)]
    if None not in classes and classes[0] != classes[1]:
        return False, f"its classes differ from those of version {served.name}, which is served"
    (value, split), (before, split_before) = judged(new, name), judged(served, name)
    if before is None:
        return True, f"version {served.name}, which is served, has no {name}"
    reference = f"version {served.name}, which is served, has {before:.4f}"
    if value is None:
        return False, f"{name} is missing or not finite; {reference}"
    if split != split_before:
        return False, f"{split} {name} {value:.4f} is not comparable; {reference} on {split_before}"
    worse = sign * (before - value)
    text = f"{split} {name} {value:.4f}; {reference}"
    if worse <= tolerance + 1e-9:  # 0.98 - 0.97 is more than 0.01 in floating point
        return True, text
    return False, f"{text}: worse by {worse:.4f}, --export.tolerance is {tolerance:g}"


def judged(version: Path, name: str) -> tuple[float | None, str]:
    """Returns a metric from the manifest of a version, None if it is not finite, and its split."""
    manifest = version_manifest.about(version)
    metrics, split = manifest.get("metrics"), str(manifest.get("judged", ""))
    value = metrics.get(name) if isinstance(metrics, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, split
    return (float(value) if abs(value) <= sys.float_info.max else None), split


def prune(model: Path, keep: int, pinned: tuple[int, ...] = ()) -> list[int]:
    """Deletes exported versions except for the `keep` highest and the pinned ones.

    Directories that this package did not export, and symbolic links, are left alone.

    Returns:
        The deleted version numbers, ascending.
    """
    exported = {n: path for n, path in files.versions(model).items() if _is_export(path)}
    removed = sorted(exported.keys() - {*sorted(exported)[-keep:], *pinned})
    for number in removed:
        temp_files.remove(exported[number])
    return removed


def pin(model: Path, version: int | None) -> None:
    """Pins a model to a version, or unpins it with None; see `models_config.pin`.

    Raises:
        UsageError: There is no such version, or `models.config` cannot be edited.
    """
    with locks.in_turn(model):
        require(model, version)
        models_config.pin(model, version)


def require(model: Path, version: int | None) -> Path | None:
    """Returns the directory of a version, None for None; raises UsageError if it is missing."""
    versions = files.versions(model)
    if version is not None and version not in versions:
        raise UsageError(
            f"--pin {version}: {model} has no such version; choose from {_list(sorted(versions))}"
        )
    return None if version is None else versions[version]


def chosen(directory: Path) -> Path:
    """Returns a version directory: the given one, or the one that a server of the model would use.

    Raises:
        UsageError: There is none.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory; give one such as saved_models/digits/1")
    marks = ("saved_model.pb", version_manifest.GOLDEN, version_manifest.MANIFEST)
    if any((directory / name).is_file() for name in marks):
        return directory
    if not files.versions(directory):
        raise UsageError(f"{directory} contains no versions, such as saved_models/digits/1")
    version = live(directory)
    if version is None:
        # Written as a path, which no name of a model is.
        path = directory if len(directory.parts) > 1 else f"./{directory}"
        raise UsageError(
            f"{directory / models_config.NAME} pins version "
            f"{_list(models_config.pinned(directory))}, which does not exist, so a server would "
            f"load nothing; python -m pipeline.export {shlex.quote(str(path))} --unpin serves the "
            "newest"
        )
    return version


def check_folder(directory: Path, model: Path) -> None:
    """Raises UsageError if a directory for exports contains something else.

    Beside versions, anything that a server ignores may be there; before the first version, only
    configuration of the server and notes.

    Args:
        directory: The directory of all models.
        model: The directory of the versions of one model.
    """
    entries = list(directory.glob("[!.]*"))
    foreign = [p.name for p in entries if p.is_file() and p.suffix not in _SERVER_FILES]
    if foreign and not any(_versions(path.glob("*")) for path in entries if path.is_dir()):
        raise UsageError(
            f"--export.directory: {directory} is not a directory of models: it contains "
            f"{min(foreign)!r}; choose another directory"
        )
    entries = sorted(model.glob("[!.]*"))
    versions = _versions(entries)
    for path in entries:
        expected = path.is_file() and path.suffix in _SERVER_FILES
        if path in versions or expected or (versions and not files.is_version(path.name)):
            continue
        raise UsageError(
            f"{model} contains {path.name!r}, which is not an exported version; move it elsewhere, "
            "or choose another --export.directory or --export.name"
        )


def _versions(paths: Iterable[Path]) -> list[Path]:
    return [p for p in paths if files.is_version(p.name) and (p / "saved_model.pb").is_file()]


def _is_export(path: Path) -> bool:
    return not path.is_symlink() and all((path / name).is_file() for name in _EXPORTED)


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
