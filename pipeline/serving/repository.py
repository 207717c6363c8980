"""The repository of versions of a model: publishing, pinning, pruning, and the quality gate."""

import dataclasses
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

from pipeline.config.sections import Export
from pipeline.serving import models_config, version_manifest
from pipeline.utils import files, locks, temp_files
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError

REFUSED = ".refused"
"""Hidden name of the last version that the gate rejected, until the next one is published."""


@dataclasses.dataclass(frozen=True)
class Published:
    """The result of publishing a version."""

    directory: Path
    """The directory of the new version, or of the rejected version."""
    refused: bool = False
    quality: str | None = None
    """The comparison with the served version; None if it was not requested."""


def publish(
    folder: Path,
    model: Path,
    options: Export,
    selection_metric: tuple[str, int],
    ready: Callable[[], None] = lambda: None,
) -> Published:
    """Publishes a verified export as the next version, unless it is worse than the served version.

    Only one process publishes at a time, so that the served version does not change meanwhile.

    Args:
        folder: The export, in a directory made by `temp_files.folder(model)`.
        model: The directory of the versions.
        options: Only `tolerance` and `keep` are used.
        selection_metric: See `Task.selection_metric`.
        ready: Called before the version becomes visible, unless the version is rejected.
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
        ready()
        version = files.publish(folder, model)
        if pinned:
            unpin = f"python -m pipeline.export {shlex.quote(str(model))} --unpin"
            say("pinned", f"to {_list(pinned)}: {unpin} serves {version.name}")
        if options.keep and (removed := prune(model, options.keep, pinned)):
            say("deleted", f"version {_list(removed)} (--export.keep {options.keep})")
    return Published(version, False, quality)


def live(model: Path) -> Path | None:
    """Returns the version that a server uses by default: the highest pinned one, else the newest.

    Returns None if there are no versions, or if none of the pinned versions exists.
    """
    versions = files.versions(model)
    pinned = models_config.pinned(model)
    number = max(versions.keys() & set(pinned) if pinned else versions, default=None)
    return None if number is None else versions[number]


def _compare(new: Path, served: Path, tolerance: float, by: tuple[str, int]) -> tuple[bool, str]:
    """Returns whether a version is at most `tolerance` worse than the served one, and the reason.

    If the served version does not have the metric (of another task), the new one is accepted.
    """
    name, sign = by
    manifests = [version_manifest.about(version) for version in (new, served)]
    classes = [manifest.get("class_names") for manifest in manifests]
    if None not in classes and classes[0] != classes[1]:
        return False, f"its classes differ from those of version {served.name}, which is served"
    value, before = (manifest.get("metrics", {}).get(name) for manifest in manifests)
    split, split_before = (manifest.get("judged", "") for manifest in manifests)
    if before is None:
        return True, f"version {served.name}, which is served, has no {name}"
    text = f"{split} {name} {'missing' if value is None else format(value, '.4f')}; "
    text += f"version {served.name}, which is served, has {before:.4f} on {split_before}"
    # 0.98 - 0.97 is more than 0.01 in floating point
    good = value is not None and sign * (before - value) <= tolerance + 1e-9
    if good and split == split_before:
        return True, text
    return False, f"{text}: worse than --export.tolerance {tolerance:g} allows"


def prune(model: Path, keep: int, pinned: tuple[int, ...] = ()) -> list[int]:
    """Deletes exported versions except for the `keep` highest and the pinned ones.

    Directories that this package did not export, and symbolic links, are left alone. Returns the
    deleted version numbers, ascending.
    """
    versions = files.versions(model)
    exported = sorted(
        number
        for number, path in versions.items()
        if (path / version_manifest.GOLDEN).is_file() and not path.is_symlink()
    )
    removed = [number for number in exported[:-keep] if number not in pinned]
    for number in removed:
        temp_files.remove(versions[number])
    return removed


def pin(model: Path, version: int | None) -> None:
    """Pins a model to a version, or unpins it with None; see `models_config.pin`."""
    with locks.in_turn(model):
        models_config.pin(model, version)


def chosen(directory: Path) -> Path:
    """Returns the given version directory, or the version that a server of a model would use."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory; use one such as saved_models/digits/1")
    marks = ("saved_model.pb", version_manifest.GOLDEN, version_manifest.MANIFEST)
    if any((directory / name).is_file() for name in marks):
        return directory
    if not files.versions(directory):
        raise UsageError(f"{directory} contains no versions, such as saved_models/digits/1")
    version = live(directory)
    if version is None:
        raise UsageError(
            f"{directory / models_config.NAME} pins version "
            f"{_list(models_config.pinned(directory))}, which does not exist; "
            f"python -m pipeline.export {shlex.quote(str(directory))} --unpin serves the newest"
        )
    return version


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
