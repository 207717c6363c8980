"""Reads the words of a command line into the values of a dataclass, by its type hints.

`--section.option VALUE ...`, `--section.option=VALUE`, and for a bool
`--section.option` or `--section.no-option`; `_` is read as `-`. If a flag is repeated,
the last value is used. In a section with the fields `name` and `options`, `--section
VALUE` is `--section.name VALUE`, and any other flag of the section is an option of the
registered function: `--source.path DIR`. In one with the field `enabled`, `--section`
and `--no-section` set it. `--option` is short for `--section.option` if no other
section has this option.
"""

import dataclasses
import functools
import os
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pipeline.config import functions, registry, validation
from pipeline.utils.errors import UsageError, did_you_mean, nearest, quoted

# Values that start with -.
_NUMBER = re.compile(r"-(\d|\.\d|inf$|infinity$|nan$)", re.IGNORECASE)
# Other common names of options; `--gpus` is their number, or with a comma which ones.
_ALIASES = {"--lr": "--train.learning-rate", "--gpus": "--runtime.replicas"}
_GPUS = "--runtime.devices"


@dataclasses.dataclass(frozen=True)
class Flag:
    """What a flag sets."""

    place: tuple[str, ...]
    """Names of the sections and the field."""
    hint: Any
    switch: bool | None = None
    """What the flag sets its option to, if it takes no value."""


def changes(words: Sequence[str], kind: type) -> dict[str, Any]:
    """The values given by the words, nested like the dataclass `kind`: {"train":
    {"epochs": 3}}.

    The fields of `kind` are values, or dataclasses of values; the words do not contain
    `--help`. Raises UsageError if a flag is unknown, or a value does not fit its field.
    """
    found = dict[str, Any]()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        end = next((at for at, other in enumerate(rest) if _is_flag(other)), len(rest))
        given, rest = [value] * bool(equals) + rest[:end], rest[end:]
        flag = _flag(name, given, kind)
        part = found
        for above in flag.place[:-1]:
            part = part.setdefault(above, {})
        part[flag.place[-1]] = _value(name, flag, given)
    return found


def _flag(name: str, given: list[str], kind: type) -> Flag:
    """The flag of this name, which may be short; UsageError if there is none, or
    several.
    """
    known, full = flags(kind), name.replace("_", "-")
    names = [_GPUS] if full == "--gpus" and "," in "".join(given) else meant(full, kind)
    if len(names) > 1 or " " in "".join(names):
        problem = "ambiguous" if len(names) > 1 else "unknown"
        raise UsageError(f"{problem} option {quoted(name)}; {did_you_mean(names)}")
    full = names[0] if names else full
    section, _, option = full.removeprefix("--").partition(".")
    if (
        full not in known
        and {f"--{section}.name", f"--{section}.options"} <= known.keys()
    ):
        return Flag((section, option.replace("-", "_")), list[str])
    if full not in known:
        raise UsageError(_unknown(name, known))
    return known[full]


def meant(name: str, kind: type) -> list[str]:
    """The flags that a name may stand for, which may be short: `--train.epochs` for
    `--epochs`.
    """
    known, full = flags(kind), name.replace("_", "-")
    if full in known or "." in full:
        return [full]
    alias, option = _ALIASES.get(full), full[2:].replace("-", "_")
    names = [alias] if alias in known else short_flags(kind).get(full)
    return names or [
        *{c.written(f, option): None for c, f in functions_with(option, kind)}
    ]


def functions_with(option: str, kind: type) -> Iterator[tuple[registry.Choice, str]]:
    """The registered functions that have an option, such as `path`."""
    for choice in registry.choices(kind):
        # Not Keras's metrics: reading them all takes long.
        others = (
            functions.keras_names(choice.registry)
            if choice.options != choice.field
            else ()
        )
        for name in (*registry.names(choice.registry), *others):
            if option in registry.find(choice.registry, name).options:
                yield choice, name


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not _NUMBER.match(word)


def _unknown(name: str, known: dict[str, Flag]) -> str:
    if not _is_flag(name):
        return f"unexpected {quoted(name)}; options start with --"
    similar = near(
        name, [*known, *(short for short, flag in _ALIASES.items() if flag in known)]
    )
    hint = did_you_mean(similar) if similar else "--help shows all options"
    return f"unknown option {quoted(name)}; {hint}"


def near(name: str, known: Iterable[str]) -> list[str]:
    """The flags that a misspelled one may stand for.

    The last parts are compared, those of the same section first: the name of the
    section makes all its flags look alike (`--train.lr`, `--train.l2`).
    """
    # Long strings take long to compare.
    section, _, last = name.lstrip("-").replace("_", "-")[:100].rpartition(".")
    if f"--{last}" in known:  # an alias, or an option of the top level
        return [_ALIASES.get(f"--{last}", f"--{last}")]
    parts = {flag: flag[2:].rpartition(".")[2] for flag in known}
    same_section = {
        flag: part for flag, part in parts.items() if flag == f"--{section}.{part}"
    }
    for some in (same_section, parts):
        if near := nearest(last, some.values(), cutoff=0.75):
            return [flag for flag, part in some.items() if part in near]
    return []


def _value(name: str, flag: Flag, given: list[str]) -> Any:
    first, last = "", given[-1] if given else ""
    if flag.switch is not None or given[1:]:
        is_recipe = last in registry.names("recipes") or os.path.exists(last)
        first = f"; {quoted(last)} comes before all options" * is_recipe
    if flag.switch is not None:
        if given:
            raise UsageError(
                f"{name} takes no value; got {quoted(' '.join(given))}{first}"
            )
        return flag.switch
    try:
        return (
            given if flag.hint == list[str] else validation.read(flag.hint, given, name)
        )
    except UsageError as error:
        raise UsageError(f"{error}{first}") from None


@functools.cache
def short_flags(kind: type) -> dict[str, list[str]]:
    """Last part of a flag, such as `--epochs` -> the flags that it may stand for."""
    found: dict[str, list[str]] = {}
    for flag in flags(kind):
        if "." in flag:
            found.setdefault(f"--{flag.rpartition('.')[2]}", []).append(flag)
    return found


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
            if f"--{field.name}.enabled" in found:
                found[f"--{field.name}"] = found[f"--{field.name}.enabled"]
                found[f"--no_{field.name}"] = found[f"--{field.name}.no-enabled"]
        elif hint is bool:
            found[f"{prefix}{field.name}"] = Flag(place, hint, True)
            found[f"{prefix}no_{field.name}"] = Flag(place, hint, False)
        elif not field.metadata.get("hidden"):
            found[f"{prefix}{field.name}"] = Flag(place, hint)
    return {name.replace("_", "-"): flag for name, flag in found.items()}
