"""Reads the words of a command line into the values of a dataclass, by its type hints.

`--section.option VALUE ...`, `--section.option=VALUE`, and for a bool `--section.option` or
`--section.no-option`; `_` is read as `-`. If a flag is repeated, the last value is used.
In a section with the fields `name` and `options`, `--section VALUE` is `--section.name VALUE`, and
any other flag of the section is an option of the registered function: `--source.path DIR`.
"""

import dataclasses
import functools
import re
import typing
from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.config import validation
from pipeline.utils.errors import UsageError, did_you_mean, nearest, quoted

# Values that start with -.
_NUMBER = re.compile(r"-(\d|\.\d|inf$|infinity$|nan$)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Flag:
    """What a flag sets."""

    place: tuple[str, ...]
    """Names of the sections and the field."""
    hint: Any
    switch: bool | None = None
    """What the flag sets its option to, if it takes no value."""


def changes(words: Sequence[str], kind: type) -> dict[str, Any]:
    """The values given by the words, nested like the dataclass: {"train": {"epochs": 3}}.

    Args:
        words: Words of a command line, without `--help`.
        kind: A dataclass whose fields are values, or dataclasses of values.

    Raises:
        UsageError: A flag is unknown, or a value does not fit its field.
    """
    known, found = flags(kind), dict[str, Any]()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        flag = known.get(name.replace("_", "-"))
        section, _, option = name.removeprefix("--").partition(".")
        if flag is None and {f"--{section}.name", f"--{section}.options"} <= known.keys():
            flag = Flag((section, option.replace("-", "_")), list[str])
        if flag is None:
            raise UsageError(_unknown(name, known))
        end = next((at for at, other in enumerate(rest) if _is_flag(other)), len(rest))
        given, rest = [value] * bool(equals) + rest[:end], rest[end:]
        part = found
        for above in flag.place[:-1]:
            part = part.setdefault(above, {})
        part[flag.place[-1]] = _value(name, flag, given)
    return found


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not _NUMBER.match(word)


def _unknown(name: str, known: dict[str, Flag]) -> str:
    if not _is_flag(name):
        return f"unexpected {quoted(name)}; options start with --"
    near = _near(name, known)
    hint = did_you_mean(near) if near else "--help after the recipe shows all options"
    return f"unknown option {quoted(name)}; {hint}"


def _near(name: str, known: Iterable[str]) -> list[str]:
    """The flags that a misspelled one may stand for.

    The last parts are compared, those of the same section first: the name of the section makes all
    its flags look alike (`--train.lr`, `--train.l2`).
    """
    # Long strings take long to compare.
    section, _, last = name.lstrip("-").replace("_", "-")[:100].rpartition(".")
    parts = {flag: flag[2:].rpartition(".")[2] for flag in known}
    same_section = {flag: part for flag, part in parts.items() if flag == f"--{section}.{part}"}
    for some in (same_section, parts):
        if near := nearest(last, some.values(), cutoff=0.75):
            return [flag for flag, part in some.items() if part in near]
    return []


def _value(name: str, flag: Flag, given: list[str]) -> Any:
    if flag.switch is not None:
        if given:
            raise UsageError(f"{name} takes no value; got {quoted(' '.join(given))}")
        return flag.switch
    return given if flag.hint == list[str] else validation.read(flag.hint, given, name)


@functools.cache
def flags(kind: Any, above: tuple[str, ...] = ()) -> dict[str, Flag]:
    """Every flag of a dataclass."""
    found: dict[str, Flag] = {}
    hints = typing.get_type_hints(kind, include_extras=True)
    prefix = "--" + "".join(f"{name}." for name in above)
    for field in dataclasses.fields(kind):
        hint, place = hints[field.name], (*above, field.name)
        if dataclasses.is_dataclass(hint):
            nested: Any = hint
            found |= flags(nested, place)
            if f"--{field.name}.options" in found:
                found[f"--{field.name}"] = found[f"--{field.name}.name"]
        elif hint is bool:
            found[f"{prefix}{field.name}"] = Flag(place, hint, True)
            found[f"{prefix}no_{field.name}"] = Flag(place, hint, False)
        elif not field.metadata.get("hidden"):
            found[f"{prefix}{field.name}"] = Flag(place, hint)
    return {name.replace("_", "-"): flag for name, flag in found.items()}
