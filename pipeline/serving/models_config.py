"""Which versions a server loads: the policy in the `models.config` beside a model's versions.

The file is TensorFlow Serving's (`ModelServerConfig` in text form) and may be edited by hand: only
the policy in it is read and written.
"""

import re
from pathlib import Path

from pipeline.utils import files, safe_io
from pipeline.utils.errors import UsageError

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
# All patterns take a time in proportion to the text, whatever it holds.
_TEXT_OR_COMMENT = re.compile(r"""'(?:\\.|[^'\\\n])*'?|"(?:\\.|[^"\\\n])*"?|\#[^\n]*""")
_POLICY = re.compile(r"\bmodel_version_policy\s*(?::\s*)?\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
_SPECIFIC = re.compile(r"\bspecific\s*(?::\s*)?\{([^{}]*)\}")
_VERSIONS = re.compile(r"\bversions\s*:\s*([^\s\[\]{},;]+|\[[^\[\]]*\])")
_NUMBER = re.compile(r"0|[1-9]\d{0,18}", re.ASCII)
_MODEL = re.compile(r"\bconfig\s*(?::\s*)?\{")
_NAME = re.compile(r"""\bname\s*:\s*('_*'|"_*")""")
_BRACE = re.compile(r"[{}]")
_PLACE = re.compile(r"""\bbase_path\s*:\s*(?:'_*'|"_*")""")


def pinned(model: Path) -> tuple[int, ...]:
    """The versions that a model is pinned to, in rising order; none if the newest is served.

    Args:
        model: The folder of its versions.

    Raises:
        UsageError: There is a `models.config` that cannot be read.
    """
    text = _read(model / NAME)
    blanked = _blanked(text)
    begin, end = _of(model, text, blanked)
    named = "".join(_SPECIFIC.findall(blanked, begin, end))
    numbers = re.findall(r"[^\s\[\],]+", " ".join(_VERSIONS.findall(named)))
    for wrong in (number for number in numbers if not _NUMBER.fullmatch(number)):
        raise UsageError(
            f"{model / NAME} pins version {wrong[:30]!r}; write a whole number, or remove it"
        )
    return tuple(sorted(set(map(int, numbers))))


def pin(model: Path, version: int | None) -> None:
    """Has servers load this version and no other, or with None the newest again.

    Raises UsageError, and changes nothing, where `models.config` holds what that would not fit.
    """
    path = model / NAME
    policy = NEWEST
    if version is not None:
        policy = f"model_version_policy {{ specific {{ versions: {version} }} }}"
    files.write_text(path, _with_policy(model, _read(path) or new(model.name), policy))


def rename(model: Path) -> None:
    """Gives the file the name of its folder where that was copied or renamed since `new` made it.

    One that was edited, but for its policy, is somebody's own. A link gives no name.
    """
    if model.is_symlink():
        return
    text = _read(model / NAME)
    blanked = _blanked(text)
    name, policies = _name(text, blanked, 0, len(text)), list(_POLICY.finditer(blanked))
    if name in (None, model.name) or len(policies) != 1:
        return
    start, stop = policies[0].span()
    if text[:start] + NEWEST + text[stop:] == new(name):
        files.write_text(model / NAME, new(model.name).replace(NEWEST, text[start:stop]))


def new(name: str) -> str:
    """A `models.config` for one model, in a container that has its folder at /models/NAME."""
    quoted, place = (
        "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
        for text in (name, f"/models/{name}")
    )
    return _NEW.format(name=quoted, path=place, policy=NEWEST)


def _with_policy(model: Path, text: str, policy: str) -> str:
    path = model / NAME
    blanked = _blanked(text)
    by_hand = f"write it by hand: {policy}"
    if not _MODEL.search(blanked):
        raise UsageError(f"{path} tells of no model; {by_hand}")
    begin, end = _of(model, text, blanked)
    if "version_labels" in blanked[begin:end]:  # one of a version not loaded stops the server
        raise UsageError(f"{path} has labels, which must name versions that are loaded; {by_hand}")
    found = list(_POLICY.finditer(blanked, begin, end))
    if len(found) == 1:
        (start, stop) = found[0].span()
        return text[:start] + policy + text[stop:]
    place = _PLACE.search(blanked, begin, end)
    if found or "model_version_policy" in blanked[begin:end] or place is None:
        raise UsageError(f"{path} has no policy that can be replaced; {by_hand}")
    return f"{text[: place.end()]}\n    {policy}{text[place.end() :]}"


def _of(model: Path, text: str, blanked: str) -> tuple[int, int]:
    """Where the text tells of this model: all of it, or of many the one that has its name."""
    many, after = [], 0
    while found := _MODEL.search(blanked, after):
        many.append(_block(blanked, found.end()))
        after = many[-1][1]
    if len(many) < 2:
        return 0, len(text)
    named = [(begin, end) for begin, end in many if _name(text, blanked, begin, end) == model.name]
    if len(named) != 1:
        raise UsageError(
            f"{model / NAME} tells of {len(many)} models, {len(named) or 'none'} of them with the "
            f"name {model.name!r}; give that name to the one of this folder"
        )
    return named[0]


def _block(blanked: str, begin: int) -> tuple[int, int]:
    depth = 1
    for brace in _BRACE.finditer(blanked, begin):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return begin, brace.start()
    return begin, len(blanked)


def _name(text: str, blanked: str, begin: int, end: int) -> str | None:
    found = _NAME.search(blanked, begin, end)
    return found and re.sub(r"\\(.)", r"\1", text[found.start(1) + 1 : found.end(1) - 1])


def _read(path: Path) -> str:
    try:
        return safe_io.read_text(path, _MOST)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path} cannot be read: {why}; mend it or remove it") from None


def _blanked(text: str) -> str:
    """The same text, of the same length: `_` for what stands in quotes, no comments, no `< >`."""

    def blank(found: re.Match[str]) -> str:
        if found[0][0] == "#":
            return " " * len(found[0])
        if len(found[0]) < 2 or found[0][0] != found[0][-1]:  # it is never closed
            return "_" * len(found[0])
        return found[0][0] + "_" * (len(found[0]) - 2) + found[0][-1]

    return _TEXT_OR_COMMENT.sub(blank, text).replace("<", "{").replace(">", "}")
