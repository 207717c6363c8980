"""Checks of config values: types and limits first, then the rules of each section."""

import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pipeline.config import formats, objects, type_hints
from pipeline.utils.errors import UsageError, quoted


def require(condition: bool, flag: str, given: Any, meant: str) -> None:
    """Raises UsageError with the flag and the expected value, unless the condition
    holds.
    """
    if not condition:
        text = str(given)
        shown = text if len(text) <= 200 else f"{text[:200]}..."
        raise UsageError(f"{flag} must be {meant}; got {shown}")


def only_one(given: Mapping[str, Any]) -> None:
    """Raises UsageError if more than one of these flags has a value."""
    used = [flag for flag, value in given.items() if value]
    if len(used) > 1:
        raise UsageError(f"use only one of {' and '.join(used)}")


def require_value(hint: Any, value: Any, flag: str) -> None:
    """Raises UsageError unless the value fits the type hint; paths must be usable as
    well.
    """
    if type_hints.is_path(hint) and isinstance(value, str | Path):
        require_path(Path(value), flag)
    shown = repr(str(value) if isinstance(value, Path) else value)
    require(type_hints.fits(hint, value), flag, shown, type_hints.describe(hint))


def read(hint: Any, words: Sequence[str], flag: str) -> Any:
    """The value that the words of a command line stand for.

    Raises UsageError with the flag and the expected value if they do not fit the type
    hint.
    """
    try:
        if type_hints.is_path(hint):
            require_path(Path(*words), flag)
        return type_hints.read(hint, words)
    except (ValueError, OverflowError):
        got = quoted(" ".join(words)) if words else "no value"
        raise UsageError(
            f"{flag} must be {type_hints.describe(hint)}; got {got}"
        ) from None


def require_path(path: Path, flag: str) -> None:
    """Raises UsageError unless TensorFlow can use the path and a message can show it on
    one line.

    A `~` at the beginning is refused: a shell does not expand it after `=` or in
    quotes, and a directory of that name would be created.
    """
    meant = "a path in UTF-8 without control characters"
    require(formats.is_printable(str(path)), flag, repr(str(path)), meant)
    if path.parts[:1] and path.parts[0].startswith("~"):
        raise UsageError(
            f"{flag}: the ~ of {path} is not expanded here; write the whole path, "
            "such as one that begins with $HOME"
        )


class Checked:
    """A section whose values are checked when it is created: their types, then
    `_check`.
    """

    def __post_init__(self) -> None:
        section = type(self).__name__.lower()
        prefix = "--" if section == "config" else f"--{section}."
        for name, hint in typing.get_type_hints(
            type(self), include_extras=True
        ).items():
            object.__setattr__(self, name, objects.names_of(hint, getattr(self, name)))
            require_value(hint, getattr(self, name), prefix + name.replace("_", "-"))
        self._check()

    @classmethod
    def from_file(cls, values: Mapping[str, Any], checked: bool = True) -> Self:
        """A section from its values in a JSON file; its names are not looked up if not
        `checked`.

        Raises KeyError if one is missing.
        """
        hints = typing.get_type_hints(cls, include_extras=True).items()
        found = {name: type_hints.from_json(hint, values[name]) for name, hint in hints}
        section = cls(**found) if checked else object.__new__(cls)
        for name, value in found.items():
            object.__setattr__(section, name, value)
        return section

    def _check(self) -> None:
        """Raises UsageError for combinations of values that are not allowed."""
