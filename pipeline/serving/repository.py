"""The repository of versions of a model: their numbers, publishing, pinning, pruning,
and the quality gate.
"""

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
"""Next to the versions of a model: which of them a server loads; may be edited by hand.
"""
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
"""Hidden name of the last version that the gate rejected, until the next one is
published.
"""


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
    """Publishes a verified export as the next version, unless it is worse than the
    served version.

    Only one process publishes at a time, so that the served version does not change
    meanwhile. `folder` is the export, in a directory made by
    `temp_files.folder(model)`; `model` is the directory of the versions. Of the
    options, `tolerance` and `keep` are used. `ready` is called before the version
    becomes visible, unless it is rejected. See also `Task.selection_metric`.
    """
    with locks.in_turn(model):
        good, quality = True, None
        served = None if options.tolerance is None else live(model)
        if served is not None and options.tolerance is not None:
            good, quality = _compare(
                folder, served, options.tolerance, selection_metric
            )
        if not good:
            temp_files.remove(model / REFUSED)
            files.publish_as(folder, model / REFUSED)
            return Published(model / REFUSED, True, quality)
        kept = pinned(model)
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

    Everything is flushed to the disk first. The number is recorded before it is used,
    so that no number is used twice, whatever is deleted later. Only one process may
    publish at a time.

    Raises UsageError if no number is left.
    """
    number = next_version(model)
    files.write_text(model / _LAST_PUBLISHED, f"{number}\n")
    files.publish_as(folder, model / str(number))
    return model / str(number)


def next_version(model: Path) -> int:
    """The next version number of a model; UsageError if no number is left."""
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
    """Number -> directory of the versions of a model, as TensorFlow Serving finds
    them.
    """
    return {
        int(path.name): path
        for path in model.glob("*")
        if is_version(path.name) and path.is_dir()
    }


def is_version(name: str) -> bool:
    """Whether TensorFlow Serving loads a directory of this name: a number that fits an
    int64.
    """
    if not name.isascii() or not name.isdecimal():
        return False
    return len(name) < 30 and int(name) < _LAST_VERSION


def live(model: Path) -> Path | None:
    """Returns the version that a server uses by default: the highest pinned one, else
    the newest.

    Returns None if there are no versions, or if none of the pinned versions exists.
    """
    numbers = versions(model)
    kept = pinned(model)
    number = max(numbers.keys() & set(kept) if kept else numbers, default=None)
    return None if number is None else numbers[number]


def _compare(
    new: Path, served: Path, tolerance: float, by: tuple[str, int]
) -> tuple[bool, str]:
    """Returns whether a version is at most `tolerance` worse than the served one, and
    the reason.

    If the served version does not have the metric (of another task), the new one is
    accepted.
    """
    name, sign = by
    manifests = [version_manifest.about(version) for version in (new, served)]
    classes = [manifest.get("class_names") for manifest in manifests]
    if None not in classes and classes[0] != classes[1]:
        return (
            False,
            f"its classes differ from those of version {served.name}, which is served",
        )
    value, before = (manifest.get("metrics", {}).get(name) for manifest in manifests)
    split, split_before = (manifest.get("judged", "") for manifest in manifests)
    if before is None:
        return True, f"version {served.name}, which is served, has no {name}"
    text = f"{split} {name} {'missing' if value is None else format(value, '.4f')}; "
    text += (
        f"version {served.name}, which is served, has {before:.4f} on {split_before}"
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
    exported = sorted(
        number
        for number, path in directories.items()
        if (path / version_manifest.GOLDEN).is_file() and not path.is_symlink()
    )
    removed = [number for number in exported[:-keep] if number not in kept]
    for number in removed:
        temp_files.remove(directories[number])
    return removed


def chosen(directory: Path) -> Path:
    """Returns the given version directory, or the version that a server of a model
    would use.
    """
    if not directory.is_dir():
        raise UsageError(
            f"{directory} is not a directory; use one such as saved_models/digits/1"
        )
    marks = ("saved_model.pb", version_manifest.GOLDEN, version_manifest.MANIFEST)
    if any((directory / name).is_file() for name in marks):
        return directory
    if not versions(directory):
        kind = (
            "is a run"
            if (directory / "checkpoints").is_dir()
            else "contains no versions"
        )
        raise UsageError(
            f"{directory} {kind}; use an export, such as saved_models/digits/1"
        )
    version = live(directory)
    if version is None:
        raise UsageError(
            f"{directory / CONFIG} pins version {_list(pinned(directory))}, which does"
            f" not exist; pipeline export {shlex.quote(str(directory))}"
            " --unpin serves the newest"
        )
    return version


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def pinned(model: Path) -> tuple[int, ...]:
    """Returns the versions that a model is pinned to, ascending; empty if the newest is
    served.
    """
    if not (model / CONFIG).exists():
        return ()
    config = _parse(model / CONFIG, _text(model / CONFIG))
    return tuple(
        sorted(set(_entry(model, config).model_version_policy.specific.versions))
    )


def pin(model: Path, version: int | None) -> None:
    """Pins a model to one version; with None, servers load the newest version again.

    `models.config` is a `ModelServerConfig` of TensorFlow Serving in text form. Only
    the policy of the model is replaced; everything else, including comments, is kept.

    Raises UsageError if the file cannot be read or edited; it is then unchanged.
    """
    with locks.in_turn(model):
        path = model / CONFIG
        text = _text(path) if path.exists() else new_config(model.name)
        wanted = _parse(path, text)
        entry = _entry(model, wanted)
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
        plain = _STRING_OR_COMMENT.sub(lambda found: " " * len(found[0]), text)
        for old in _POLICY.finditer(
            plain
        ):  # replacing the policy of the model gives `wanted`
            edited = text[: old.start()] + policy + text[old.end() :]
            if _parse(path, edited) == wanted:
                files.write_text(path, edited)
                return
        raise UsageError(
            f"{path} has no policy that can be replaced; edit it by hand: {policy}"
        )


def new_config(name: str) -> str:
    """Returns a `models.config` for one model, for a container that mounts it at
    /models/NAME.
    """
    quoted = name.replace("\\", "\\\\").replace("'", "\\'")
    return _NEW.format(name=f"'{quoted}'", path=f"'/models/{quoted}'")


def _entry(model: Path, config: Any) -> Any:
    """Returns the entry of a model: the only one, or the one with its name."""
    entries = config.model_config_list.config
    found = [one for one in entries if len(entries) == 1 or one.name == model.name]
    if len(found) != 1:
        raise UsageError(
            f"{model / CONFIG} must have one entry for the model {model.name!r}"
        )
    return found[0]


def _text(path: Path) -> str:
    try:
        return safe_io.read_text(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read: {reason(error)}; fix it or remove it"
        ) from None


def _parse(path: Path, text: str) -> Any:
    from google.protobuf import text_format

    from pipeline.utils import (
        protobuf,
    )  # imports NumPy, which a preflight check should not

    with protobuf.importable():
        from tensorflow_serving.config import model_server_config_pb2

    try:
        return text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    except (text_format.ParseError, RecursionError) as error:
        raise UsageError(
            f"{path} cannot be read: {reason(error)}; fix it or remove it"
        ) from None
