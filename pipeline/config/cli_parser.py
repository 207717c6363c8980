"""Reads the words of a command line into the values of a dataclass, by its type hints.

`--section.option VALUE ...`, `--section.option=VALUE`, and for a bool `--section.option` or
`--section.no-option`; `_` counts as `-`. A flag that is given again replaces the earlier value.
In a section with the fields `name` and `options`, `--section VALUE` is `--section.name VALUE`, and
any other flag of the section is an option of the registered function: `--source.path DIR`.
"""

import dataclasses
import difflib
import functools
import re
import typing
from collections.abc import Iterable, Sequence
from typing import Any

import tyro

from pipeline.config import type_hints
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
        section, _, option = name.removeprefix("--").partition(".")
        if flag is None and option and section in _open_sections(kind):
            flag = _Flag((section, option.replace("-", "_")), list[str])
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


def same_in_other_sections(option: str, kind: type) -> list[str]:
    """The flags of other sections with this last part: `epochs`, `--train.epochs`."""
    return [flag for flag in _flags(kind) if flag.endswith(f".{option.replace('_', '-')}")]


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
    if flag.hint == list[str]:
        return given
    try:
        return type_hints.read(flag.hint, given)
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
def _open_sections(kind: type) -> set[str]:
    """Sections that name a registered function, and take its options."""
    hints = {field.name: field.type for field in dataclasses.fields(kind)}
    nested = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    return {
        name
        for name, section in nested.items()
        if {"name", "options"} <= {field.name for field in dataclasses.fields(section)}
    }


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
            if not above and field.name in _open_sections(kind):
                found[f"--{field.name}"] = found[f"--{field.name}.name"]
        elif _HIDDEN in getattr(hint, "__metadata__", ()):
            continue
        elif hint is bool:
            found[f"--{prefix}{field.name}"] = _Flag(place, hint, True)
            found[f"--{prefix}no_{field.name}"] = _Flag(place, hint, False)
        else:
            found[f"--{prefix}{field.name}"] = _Flag(place, hint)
    return {name.replace("_", "-"): flag for name, flag in found.items()}
