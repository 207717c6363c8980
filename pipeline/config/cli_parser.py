"""Words of a command line to values of a dataclass, by its type hints; else one line says why not.

`--section.option VALUE ...`, `--section.option=VALUE`, and for a bool `--section.option` or
`--section.no-option`; `_` counts as `-`. A flag that is given again replaces what it said before.
"""

import dataclasses
import difflib
import functools
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import tyro

from pipeline.utils.errors import UsageError, did_you_mean, nearest

_HIDDEN = typing.get_args(tyro.conf.Suppress[str])[1]
# What starts with - and is a value all the same.
_NUMBER = re.compile(r"-(\d|\.\d|inf$|infinity$|nan$)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class _Flag:
    place: tuple[str, ...]
    """Names of the sections and the field."""
    hint: Any
    switch: bool | None = None
    """What a flag without a value stands for; None where it takes values."""


def changes(words: Sequence[str], kind: type) -> dict[str, Any]:
    """The values that the words give, nested as the dataclass: {"train": {"epochs": 3}}.

    Args:
        words: Of a command line, without `--help`.
        kind: A dataclass whose fields are values, or dataclasses of values.

    Raises:
        UsageError: An unknown flag, or a value that is not what its field takes.
    """
    known, found = _flags(kind), {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        flag = known.get(name.replace("_", "-"))
        if flag is None:
            raise UsageError(_unknown(name, known))
        end = next((at for at, other in enumerate(rest) if _is_flag(other)), len(rest))
        given, rest = [value] * bool(equals) + rest[:end], rest[end:]
        section = found
        for part in flag.place[:-1]:
            section = section.setdefault(part, {})
        section[flag.place[-1]] = _value(name, flag, given, rest)
    return found


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not _NUMBER.match(word)


def _unknown(name: str, known: dict[str, _Flag]) -> str:
    if not _is_flag(name):
        return f"{_short(name)} belongs to no option; options start with --"
    near = _near(name, known)
    hint = did_you_mean(near) if near else "--help after the recipe shows all options"
    return f"unknown option {_short(name)}; {hint}"


def _near(name: str, known: Iterable[str]) -> list[str]:
    """The flags that a wrong one may stand for.

    The last parts are compared, first those of its own section: the name of the section makes all
    its flags look alike (`--train.lr`, `--train.l2`).
    """
    # Comparing takes a time that grows with both strings.
    bare = name.lstrip("-").replace("_", "-")[:100]
    section, _, last = bare.rpartition(".")
    parts = {flag: flag[2:].rpartition(".")[2] for flag in known}
    own = {flag: part for flag, part in parts.items() if flag == f"--{section}.{part}"}
    for some in (own, parts):
        if near := nearest(last, some.values(), cutoff=0.75):
            return [flag for flag, part in some.items() if part in near]
    whole = {flag[2:]: flag for flag in parts}  # `train-epochs`, `tarin.epochs`
    close = [] if own else difflib.get_close_matches(bare, whole, n=1, cutoff=0.75)
    return [whole[text] for text in close]


def _value(name: str, flag: _Flag, given: list[str], rest: list[str]) -> Any:
    if flag.switch is not None:
        if given:
            raise UsageError(f"{name} takes no value, received {_short(' '.join(given))}")
        return flag.switch
    try:
        return _read(flag.hint, given)
    except ValueError as error:
        said = str(error)
    if not given:
        if rest and not rest[0].startswith("--"):
            said += (
                f"; one that starts with - is given after =, as in {name}={_short(rest[0])[1:-1]}"
            )
        raise UsageError(f"{name} needs a value: {said}")
    raise UsageError(f"{name} must be {said}, received {_short(' '.join(given))}")


def _short(text: str) -> str:
    """Quoted, on one line, and not endless."""
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}..."


@functools.cache
def _flags(kind: type, above: tuple[str, ...] = ()) -> dict[str, _Flag]:
    """Flag -> what it sets."""
    found: dict[str, _Flag] = {}
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, place = hints[field.name], (*above, field.name)
        prefix = "".join(f"{name}." for name in above)
        if dataclasses.is_dataclass(hint):
            found |= _flags(hint, place)
        elif _HIDDEN in getattr(hint, "__metadata__", ()):
            continue
        elif hint is bool:
            found[f"--{prefix}{field.name}"] = _Flag(place, hint, True)
            found[f"--{prefix}no_{field.name}"] = _Flag(place, hint, False)
        else:
            found[f"--{prefix}{field.name}"] = _Flag(place, hint)
    return {name.replace("_", "-"): flag for name, flag in found.items()}


def _read(hint: Any, words: list[str]) -> Any:
    """The value; raises ValueError saying what is meant."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        own = [m.instance_from_str for m in hint.__metadata__ if hasattr(m, "instance_from_str")]
        return own[0](words) if own else _read(arguments[0], words)
    if origin in (Union, types.UnionType):
        return _first(sorted(arguments, key=lambda one: one is not types.NoneType), words)
    if origin is tuple:
        several = arguments[-1] is Ellipsis
        if len(words) != len(arguments) and not several:
            raise ValueError(_meaning(hint))
        kinds = [arguments[0]] * len(words) if several else arguments
        return tuple(_read(one, [word]) for one, word in zip(kinds, words, strict=True))
    if len(words) != 1:
        raise ValueError(_meaning(hint))
    if origin is Literal:
        return _choice(arguments, words[0])
    try:
        return _READERS[hint](words[0])
    except ValueError:
        raise ValueError(_meaning(hint)) from None


def _first(kinds: Sequence[Any], words: list[str]) -> Any:
    """The value by the first of several hints that it fits."""
    said = []
    for kind in kinds:
        try:
            return _read(kind, words)
        except ValueError as error:
            said.append(str(error))
    raise ValueError(" or ".join([*said[1:], said[0]] if said[0] == "None" else said))


def _choice(choices: Sequence[Any], word: str) -> Any:
    for choice in choices:
        if word == str(choice):
            return choice
    texts = [str(choice) for choice in choices]
    raise ValueError(f"one of {', '.join(texts)}" if len(texts) > 1 else texts[0])


def _none(word: str) -> None:
    if word != "None":
        raise ValueError


def _path(word: str) -> Path:
    if not word:  # an empty variable of a shell would become the current folder
        raise ValueError
    return Path(word)


_READERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    str: str,
    Path: _path,
    types.NoneType: _none,
}
_MEANINGS = {int: "a whole number", float: "a number", str: "one word", Path: "a path"}


def _meaning(hint: Any) -> str:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and arguments[-1] is not Ellipsis:
        return f"{len(arguments)} values, each {_meaning(arguments[0])}"
    return _MEANINGS.get(hint, "None" if hint is types.NoneType else "one of its values")
