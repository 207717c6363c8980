"""Publishes, numbers, pins and prunes the versions of a model."""

import dataclasses
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pipeline.config.sections import ExportConfig
from pipeline.serving import version_manifest
from pipeline.utils import files, locks, safe_io, temp_files
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, reason

CONFIG = "models.config"
"""The file that selects the versions a server loads; users may edit it."""
_NEW = """\
model_config_list {{
  config {{
    name: {name}
    base_path: {path}
    model_platform: 'tensorflow'
    model_version_policy {{ latest {{ num_versions: 1 }} }}
  }}
}}
"""
_STRING_OR_COMMENT = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\#[^\n]*""")
_POLICY = re.compile(r"\bmodel_version_policy\s*:?\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
_LAST_VERSION = 2**63 - 1
_LAST_PUBLISHED = ".published"
"""Hidden file with the last version number that was used."""
REFUSED = ".refused"
"""Hidden name of the last rejected version, until the next rejection."""


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
    options: ExportConfig,
    selection_metric: tuple[str, int],
    ready: Callable[[], None] = lambda: None,
) -> Published:
    """Publishes a verified export, unless it is worse than the served version.

    Only one process publishes at a time, so that the served version does not change
    meanwhile. See also `Task.selection_metric`.

    Args:
        folder: The export, in a directory made by `temp_files.folder(model)`.
        model: The directory of the versions.
        options: The options of the export, of which `tolerance` and `keep` are used.
        selection_metric: The metric to compare, and 1 if higher is better, else -1.
        ready: Called before the version becomes visible, unless it is rejected.
    """
    with locks.in_turn(model):
        good = True
        quality = None
        served = None if options.tolerance is None else live(model)
        if served is not None and options.tolerance is not None:
            good, quality = _compare(
                folder, served, options.tolerance, selection_metric
            )
        if not good:
            temp_files.remove(model / REFUSED)
            files.publish_as(folder, model / REFUSED)
            return Published(model / REFUSED, True, quality)
        kept = pinned_versions(model)
        ready()
        version = move_to_next_version(folder, model)
        if kept:
            unpin = f"pipeline export {shlex.quote(str(model))} --unpin"
            say("pinned", f"to {_list(kept)}: {unpin} serves {version.name}")
        if options.keep and (removed := prune(model, options.keep, kept)):
            say("deleted", f"version {_list(removed)} (--export.keep {options.keep})")
    return Published(version, False, quality)


def move_to_next_version(folder: Path, model: Path) -> Path:
    """Moves a finished directory to the next version number of a model, in one rename.

    Flushes everything to the disk first. Records the number before its use, so that no
    number is used twice, whatever is deleted later. Only one process may publish at a
    time.

    Raises UsageError if no number is left.
    """
    number = next_version(model)
    files.write_text(model / _LAST_PUBLISHED, f"{number}\n")
    files.publish_as(folder, model / str(number))
    return model / str(number)


def next_version(model: Path) -> int:
    """Returns the next version number of a model; UsageError if none is left."""
    try:
        last = int(safe_io.read_text(model / _LAST_PUBLISHED))
    except (OSError, ValueError):
        last = 0
    number = max(last, 0, *versions(model)) + 1
    if not is_version(str(number)):
        raise UsageError(
            f"{model} has no version number left; choose another --export.name"
        )
    return number


def versions(model: Path) -> dict[int, Path]:
    """Maps version numbers to directories, as TensorFlow Serving finds them."""
    paths = [path for path in model.glob("*") if is_version(path.name)]
    return {int(path.name): path for path in paths if path.is_dir()}


def is_version(name: str) -> bool:
    """Whether TensorFlow Serving loads a directory of this name: an int64."""
    if not name.isascii() or not name.isdecimal():
        return False
    return len(name) < 30 and int(name) < _LAST_VERSION


def live(model: Path) -> Path | None:
    """Returns the version that a server uses: the highest pinned one, else the newest.

    Returns None if there are no versions, or if none of the pinned versions exists.
    """
    numbers = versions(model)
    kept = pinned_versions(model)
    number = max(numbers.keys() & set(kept) if kept else numbers, default=None)
    return None if number is None else numbers[number]


def _compare(
    new: Path, served: Path, tolerance: float, by: tuple[str, int]
) -> tuple[bool, str]:
    """Returns whether a version is good enough to replace the served one, and why.

    It may be worse by at most `tolerance`. If the served version lacks the metric,
    because it has another task, the new version is accepted.
    """
    name, sign = by
    manifests = [version_manifest.properties(version) for version in (new, served)]
    classes = [manifest.get("class_names") for manifest in manifests]
    if None not in classes and classes[0] != classes[1]:
        return (
            False,
            f"its classes differ from those of version {served.name}, which is served",
        )
    value, before = (manifest.get("metrics", {}).get(name) for manifest in manifests)
    split, split_before = (
        manifest.get("evaluated_split", "") for manifest in manifests
    )
    if before is None:
        return True, f"version {served.name}, which is served, has no {name}"
    score = "missing" if value is None else f"{value:.4f}"
    text = (
        f"{split} {name} {score}; version {served.name}, which is served, has"
        f" {before:.4f} on {split_before}"
    )
    # 0.98 - 0.97 is more than 0.01 in floating point
    good = value is not None and sign * (before - value) <= tolerance + 1e-9
    if good and split == split_before:
        return True, text
    return False, f"{text}: worse than --export.tolerance {tolerance:g} allows"


def prune(model: Path, keep: int, kept: tuple[int, ...] = ()) -> list[int]:
    """Deletes exported versions except for the `keep` highest and those `kept`.

    Directories that this package did not export, and symbolic links, are left alone.
    Returns the deleted version numbers, ascending.
    """
    directories = versions(model)
    exported = []
    for number, path in sorted(directories.items()):
        if (path / version_manifest.GOLDEN).is_file() and not path.is_symlink():
            exported.append(number)
    removed = [number for number in exported[:-keep] if number not in kept]
    for number in removed:
        temp_files.remove(directories[number])
    return removed


def select_version(directory: Path) -> Path:
    """Returns a version directory, or the version of a model that a server uses."""
    if not directory.is_dir():
        raise UsageError(
            f"{directory} is not a directory; use one such as saved_models/digits/1"
        )
    marks = ("saved_model.pb", version_manifest.GOLDEN, version_manifest.MANIFEST)
    if any((directory / name).is_file() for name in marks):
        return directory
    if not versions(directory):
        is_run = (directory / "checkpoints").is_dir()
        kind = "is a run" if is_run else "contains no versions"
        raise UsageError(
            f"{directory} {kind}; use an export, such as saved_models/digits/1"
        )
    version = live(directory)
    if version is None:
        numbers = _list(pinned_versions(directory))
        raise UsageError(
            f"{directory / CONFIG} pins version {numbers}, which does not exist;"
            f" pipeline export {shlex.quote(str(directory))} --unpin serves the newest"
        )
    return version


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def pinned_versions(model: Path) -> tuple[int, ...]:
    """Returns the pinned versions, ascending; empty if the newest is served."""
    if not (model / CONFIG).exists():
        return ()
    config = _parse(model / CONFIG, _text(model / CONFIG))
    policy = _entry(model, config).model_version_policy
    return tuple(sorted(set(policy.specific.versions)))


def pin(model: Path, version: int | None) -> None:
    """Pins a model to one version; with None, servers load the newest version again.

    `models.config` is a `ModelServerConfig` of TensorFlow Serving in text form. Only
    the policy of the model is replaced; everything else, including comments, is kept.

    Raises UsageError if the file cannot be read or edited; it is then unchanged.
    """
    with locks.in_turn(model):
        path = model / CONFIG
        text = _text(path) if path.exists() else new_config(model.name)
        target = _parse(path, text)
        entry = _entry(model, target)
        if entry.version_labels:  # a server exits if a labeled version is not loaded
            raise UsageError(
                f"{path} has labels; edit its model_version_policy by hand"
            )
        entry.ClearField("model_version_policy")
        if version is None:
            policy = "model_version_policy { latest { num_versions: 1 } }"
            entry.model_version_policy.latest.num_versions = 1
        else:
            policy = f"model_version_policy {{ specific {{ versions: {version} }} }}"
            entry.model_version_policy.specific.versions.append(version)
        # Only replacing the policy of this model gives the target.
        blanked = _STRING_OR_COMMENT.sub(_blank, text)
        for old in _POLICY.finditer(blanked):
            edited = text[: old.start()] + policy + text[old.end() :]
            if _parse(path, edited) == target:
                files.write_text(path, edited)
                return
        raise UsageError(
            f"{path} has no policy that can be replaced; edit it by hand: {policy}"
        )


def _blank(match: re.Match[str]) -> str:
    """Replaces a string or comment by spaces, so that positions stay the same."""
    return "".ljust(len(match[0]))


def new_config(name: str) -> str:
    """Returns `models.config` of a model that a container mounts at /models/NAME."""
    quoted = name.replace("\\", "\\\\").replace("'", "\\'")
    return _NEW.format(name=f"'{quoted}'", path=f"'/models/{quoted}'")


def _entry(model: Path, config: Any) -> Any:
    """Returns the entry of a model: the only one, or the one with its name."""
    entries = config.model_config_list.config
    if len(entries) == 1:
        return entries[0]
    matches = [entry for entry in entries if entry.name == model.name]
    if len(matches) != 1:
        raise UsageError(
            f"{model / CONFIG} must have one entry for the model {model.name!r}"
        )
    return matches[0]


def _text(path: Path) -> str:
    try:
        return safe_io.read_text(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read: {reason(error)}; fix it or remove it"
        ) from None


def _parse(path: Path, text: str) -> Any:
    from google.protobuf import text_format

    # Imports NumPy, which a preflight check should not.
    from pipeline.utils import protobuf

    with protobuf.importable():
        from tensorflow_serving.config import model_server_config_pb2

    try:
        return text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    except (text_format.ParseError, RecursionError) as error:
        raise UsageError(
            f"{path} cannot be read: {reason(error)}; fix it or remove it"
        ) from None
