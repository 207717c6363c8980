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
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pipeline.config import registry, validation
from pipeline.utils.errors import UsageError, did_you_mean, nearest, quote

# Values that start with -.
_NUMBER = re.compile(r"-(\d|\.\d|inf$|infinity$|nan$)", re.IGNORECASE)
# Other common names of options; `--gpus` is their number, or with a comma which ones.
_ALIASES = {"--lr": "--train.learning-rate", "--gpus": "--runtime.replicas"}
_GPUS = "--runtime.devices"


@dataclasses.dataclass(frozen=True)
class Flag:
    """The field that a flag sets."""

    path: tuple[str, ...]
    """Names of the sections and the field."""
    hint: Any
    switch: bool | None = None
    """The value that the flag sets, if it takes none on the command line."""


def changes(words: Sequence[str], kind: type) -> dict[str, Any]:
    """Reads words into values, nested like the dataclass `kind`: {"train": {"epochs":
    3}}.

    The fields of `kind` are values, or dataclasses of values; the words do not contain
    `--help`. Raises UsageError if a flag is unknown, or a value does not fit its field.
    """
    nested = dict[str, Any]()
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        values = [value] if equals else []
        while rest and not _is_flag(rest[0]):
            values.append(rest.pop(0))
        flag = _flag(name, values, kind)
        part = nested
        for section in flag.path[:-1]:
            part = part.setdefault(section, {})
        part[flag.path[-1]] = _value(name, flag, values)
    return nested


def _flag(name: str, values: list[str], kind: type) -> Flag:
    """The flag of this name, which may be short.

    Raises UsageError if there is none, or several.
    """
    all_flags = flags(kind)
    full = name.replace("_", "-")
    if full == "--gpus" and "," in "".join(values):
        matches = [_GPUS]
    else:
        matches = matching_flags(full, kind)
    if len(matches) > 1 or " " in "".join(matches):
        problem = "ambiguous" if len(matches) > 1 else "unknown"
        raise UsageError(f"{problem} option {quote(name)}; {did_you_mean(matches)}")
    if matches:
        full = matches[0]
    if full in all_flags:
        return all_flags[full]
    section, _, option = full.removeprefix("--").partition(".")
    if {f"--{section}.name", f"--{section}.options"} <= all_flags.keys():
        return Flag((section, option.replace("-", "_")), list[str])
    raise UsageError(_unknown(name, all_flags))


def matching_flags(name: str, kind: type) -> list[str]:
    """The flags that a name, which may be short, stands for: `--train.epochs` for
    `--epochs`.
    """
    all_flags = flags(kind)
    full = name.replace("_", "-")
    if full in all_flags or "." in full:
        return [full]
    alias = _ALIASES.get(full)
    if alias in all_flags:
        return [alias]
    matches = short_flags(kind).get(full)
    if matches:
        return matches
    option = full[2:].replace("-", "_")
    usages = [
        choice.usage(function, option)
        for choice, function in registry.functions_with(option, kind)
    ]
    return list(dict.fromkeys(usages))


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not _NUMBER.match(word)


def _unknown(name: str, all_flags: dict[str, Flag]) -> str:
    if not _is_flag(name):
        return f"unexpected {quote(name)}; options start with --"
    aliases = [alias for alias, flag in _ALIASES.items() if flag in all_flags]
    similar = similar_flags(name, [*all_flags, *aliases])
    hint = did_you_mean(similar) if similar else "--help shows all options"
    return f"unknown option {quote(name)}; {hint}"


def similar_flags(name: str, candidates: Collection[str]) -> list[str]:
    """The flags that a misspelled one may stand for.

    The last parts are compared, first with the flags of the same section: the name of
    the section makes all its flags look alike (`--train.lr`, `--train.l2`).
    """
    # Long strings take long to compare.
    section, _, last = name.lstrip("-").replace("_", "-")[:100].rpartition(".")
    if f"--{last}" in candidates:  # an alias, or an option of the top level
        return [_ALIASES.get(f"--{last}", f"--{last}")]
    last_parts = {flag: flag[2:].rpartition(".")[2] for flag in candidates}
    same_section = {
        flag: part for flag, part in last_parts.items() if flag == f"--{section}.{part}"
    }
    for parts in (same_section, last_parts):
        closest = nearest(last, parts.values(), cutoff=0.75)
        if closest:
            return [flag for flag, part in parts.items() if part in closest]
    return []


def _value(name: str, flag: Flag, values: list[str]) -> Any:
    """The value of a flag; UsageError if it does not fit."""
    hint = ""
    if flag.switch is not None or len(values) > 1:
        hint = _misplaced_recipe(values[-1] if values else "")
    if flag.switch is not None:
        if values:
            got = quote(" ".join(values))
            raise UsageError(f"{name} takes no value; got {got}{hint}")
        return flag.switch
    if flag.hint == list[str]:
        return values
    try:
        return validation.read(flag.hint, values, name)
    except UsageError as error:
        raise UsageError(f"{error}{hint}") from None


def _misplaced_recipe(word: str) -> str:
    """The end of an error message if the last word is a recipe, or data."""
    if word in registry.names("recipes") or os.path.exists(word):
        return f"; {quote(word)} comes before all options"
    return ""


@functools.cache
def short_flags(kind: type) -> dict[str, list[str]]:
    """Last part of a flag, such as `--epochs` -> the flags that it may stand for."""
    matches: dict[str, list[str]] = {}
    for flag in flags(kind):
        if "." in flag:
            matches.setdefault(f"--{flag.rpartition('.')[2]}", []).append(flag)
    return matches


def split(
    words: Sequence[str], is_own: Callable[[str], bool]
) -> tuple[list[str], list[str]]:
    """Separates the options whose flags are a command's own from all others, each with
    its values.
    """
    own: list[str] = []
    others: list[str] = []
    part = others
    for word in words:
        if word.startswith("--"):
            flag = word.partition("=")[0].replace("_", "-")
            part = own if is_own(flag) else others
        part.append(word)
    return own, others


@functools.cache
def flags(kind: Any, sections: tuple[str, ...] = ()) -> dict[str, Flag]:
    """Every flag of a dataclass, which is nested in these sections."""
    all_flags: dict[str, Flag] = {}
    hints = typing.get_type_hints(kind, include_extras=True)
    prefix = "--" + "".join(f"{name}." for name in sections)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        path = (*sections, field.name)
        if dataclasses.is_dataclass(hint):
            section: Any = hint
            all_flags |= flags(section, path)
            if f"--{field.name}.options" in all_flags:
                all_flags[f"--{field.name}"] = all_flags[f"--{field.name}.name"]
            if f"--{field.name}.enabled" in all_flags:
                enable = all_flags[f"--{field.name}.enabled"]
                disable = all_flags[f"--{field.name}.no-enabled"]
                all_flags[f"--{field.name}"] = enable
                all_flags[f"--no_{field.name}"] = disable
        elif hint is bool:
            all_flags[f"{prefix}{field.name}"] = Flag(path, hint, True)
            all_flags[f"{prefix}no_{field.name}"] = Flag(path, hint, False)
        elif not field.metadata.get("hidden"):
            all_flags[f"{prefix}{field.name}"] = Flag(path, hint)
    return {name.replace("_", "-"): flag for name, flag in all_flags.items()}
