"""Which versions a server loads: the policy in the `models.config` beside a model's versions.

The file is TensorFlow Serving's (`ModelServerConfig` in text form) and may be edited by hand: only
the policy in it is read and written.
"""

import re
from pathlib import Path

from pipeline import files, untrusted
from pipeline.errors import UsageError

NAME = "models.config"
NEWEST = "model_version_policy { latest { num_versions: 1 } }"
"""The policy of a model that is not pinned, which is the server's own default."""

_MOST = 2**20  # bytes
_NEW = """\
model_config_list {{
  config {{
    name: {name}
    base_path: {path}
    model_platform: 'tensorflow'
    {policy}
  }}
}}
"""
# Texts and comments may hold anything, braces too.
_TEXT_OR_COMMENT = re.compile(r"""'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|\#[^\n]*""")
_POLICY = re.compile(r"\bmodel_version_policy\s*:?\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
_SPECIFIC = re.compile(r"\bspecific\s*:?\s*\{([^{}]*)\}")
_VERSIONS = re.compile(r"\bversions\s*:\s*(\d+|\[[^\]]*\])")
_MODEL = re.compile(r"\bconfig\s*:?\s*\{")
_PLACE = re.compile(r"""\bbase_path\s*:\s*(?:'_*'|"_*")""")


def pinned(model: Path) -> tuple[int, ...]:
    """The versions that a model is pinned to, in rising order; none if the newest is served.

    Args:
        model: The folder of its versions.

    Raises:
        UsageError: There is a `models.config` that cannot be read.
    """
    named = "".join(_SPECIFIC.findall(_blanked(_read(model / NAME))))
    numbers = re.findall(r"\d+", " ".join(_VERSIONS.findall(named)))
    return tuple(sorted(set(map(int, numbers))))


def pin(model: Path, version: int | None) -> None:
    """Has servers load this version and no other, or with None the newest again.

    Raises UsageError, and changes nothing, where `models.config` holds what that would not fit.
    """
    path = model / NAME
    policy = NEWEST
    if version is not None:
        policy = f"model_version_policy {{ specific {{ versions: {version} }} }}"
    files.write_text(path, _with_policy(path, _read(path) or new(model.name), policy))


def new(name: str) -> str:
    """A `models.config` for one model, in a container that has its folder at /models/NAME."""
    quoted, place = (
        "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
        for text in (name, f"/models/{name}")
    )
    return _NEW.format(name=quoted, path=place, policy=NEWEST)


def _with_policy(path: Path, text: str, policy: str) -> str:
    blanked = _blanked(text)
    by_hand = f"write it by hand: {policy}"
    if len(_MODEL.findall(blanked)) != 1:
        raise UsageError(f"{path} does not tell of one model alone; {by_hand}")
    if "version_labels" in blanked:  # a label of a version that is not loaded stops the server
        raise UsageError(f"{path} has labels, which must name versions that are loaded; {by_hand}")
    found = list(_POLICY.finditer(blanked))
    if len(found) == 1:
        (start, end) = found[0].span()
        return text[:start] + policy + text[end:]
    place = _PLACE.search(blanked)
    if found or "model_version_policy" in blanked or place is None:
        raise UsageError(f"{path} has no policy that can be replaced; {by_hand}")
    return f"{text[: place.end()]}\n    {policy}{text[place.end() :]}"


def _read(path: Path) -> str:
    try:
        return untrusted.read_text(path, _MOST)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path} cannot be read: {why}; mend it or remove it") from None


def _blanked(text: str) -> str:
    """The same text, of the same length, with `_` for what stands in quotes, no comments."""

    def blank(found: re.Match[str]) -> str:
        if found[0][0] == "#":
            return " " * len(found[0])
        return found[0][0] + "_" * (len(found[0]) - 2) + found[0][-1]

    return _TEXT_OR_COMMENT.sub(blank, text)
