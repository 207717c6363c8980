"""Which files the inputs of tasks read, from the defaults of their options `field` and
`suffixes`.
"""

import ast
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from pipeline.config import registry
from pipeline.utils.errors import UsageError, suggest

IMAGE = "image"
"""The field of images: what files of unknown kind are taken for."""


class FileType(NamedTuple):
    """The files that an input reads."""

    field: str
    """Name of the raw field with the content of a file."""
    suffixes: tuple[str, ...]
    """In lower case, each with its dot."""


def inputs() -> dict[str, FileType]:
    """The files of each registered input that reads files, by the name of the input."""
    types = {}
    for name in registry.names("inputs"):
        kind = of(name)
        if kind is not None:
            types[name] = kind
    return types


def of(name: str) -> FileType | None:
    """The files that an input reads, which need not be registered; None if none.

    Raises UsageError if there is no such input.
    """
    options = registry.find("inputs", name).options
    field = _default(options, "field")
    suffixes = _default(options, "suffixes")
    if not field or not suffixes:
        return None
    return FileType(field, _normalize(suffixes))


def value_columns() -> dict[str, tuple[str, ...]]:
    """Field -> the columns of a table that have its values, such as texts.

    From the defaults of the option `columns` of the inputs.
    """
    columns = {}
    for name in registry.names("inputs"):
        options = registry.find("inputs", name).options
        field = _default(options, "field")
        names = _default(options, "columns")
        if field and names:
            columns[field] = tuple(names)
    return columns


def _default(options: Mapping[str, Any], name: str) -> Any:
    """The default of an option; None if there is none, or it is not a literal."""
    if name not in options:
        return None
    try:
        return ast.literal_eval(options[name].default or "None")
    except ValueError:
        return None


def _normalize(suffixes: Iterable[str]) -> tuple[str, ...]:
    return tuple(f".{suffix.lower().lstrip('.')}" for suffix in suffixes)


def fields() -> dict[str, tuple[str, ...]]:
    """Field -> suffixes of its files, images first."""
    types = sorted(inputs().values(), key=lambda kind: kind.field != IMAGE)
    suffixes: dict[str, tuple[str, ...]] = {}
    for kind in types:
        suffixes[kind.field] = suffixes.get(kind.field, ()) + kind.suffixes
    return suffixes


def select(
    field: str | None, suffixes: Collection[str] = ()
) -> dict[str, tuple[str, ...]]:
    """The fields and suffixes that two options of a source leave; by default all.

    Raises UsageError if the field has no known suffixes, or the suffixes no known
    field.
    """
    suffixes = _normalize(suffixes)
    every = fields()
    if field and suffixes:
        return {field: suffixes}
    if suffixes:
        matches = [name for name, endings in every.items() if {*suffixes} & {*endings}]
        if len(matches) == 1:
            return {matches[0]: suffixes}
        raise UsageError(
            f"--source.suffixes {' '.join(suffixes)} needs --source.field, the field of"
            " the input that reads such files"
        )
    if not field:
        return every
    if field not in every:
        raise UsageError(
            f"--source.field {field}: no input reads files into this field;"
            f" {suggest(field, every)}, or add --source.suffixes"
        )
    return {field: every[field]}


def field_of(name: str, types: Mapping[str, tuple[str, ...]]) -> str:
    """The field of a file, by its suffix; empty if there is none."""
    lower = name.lower()
    for field, suffixes in types.items():
        if lower.endswith(suffixes):
            return field
    return ""


def most_common(names: Iterable[str], types: Mapping[str, tuple[str, ...]]) -> str:
    """The field of most files, the first one if several have as many.

    Files without a known suffix do not count.
    """
    counts = Counter(field_of(name, types) for name in names)
    return max(types, key=lambda field: counts[field], default=IMAGE)
