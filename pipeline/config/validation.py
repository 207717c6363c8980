"""Checks of config values: types and limits first, then the rules of each section."""

import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pipeline.config import formats, objects, type_hints
from pipeline.utils.errors import UsageError, quote


def require(condition: bool, flag: str, value: Any, expected: str) -> None:
    """Raises UsageError with the flag and the expected value, unless the condition
    holds.
    """
    if not condition:
        text = str(value)
        if len(text) > 200:
            text = f"{text[:200]}..."
        raise UsageError(f"{flag} must be {expected}; got {text}")


def only_one(values: Mapping[str, Any]) -> None:
    """Raises UsageError if more than one of these flags has a value."""
    used = [flag for flag, value in values.items() if value]
    if len(used) > 1:
        raise UsageError(f"use only one of {' and '.join(used)}")


def require_value(hint: Any, value: Any, flag: str) -> None:
    """Raises UsageError unless the value fits the type hint, and a path is usable."""
    if type_hints.is_path(hint) and isinstance(value, str | Path):
        require_path(Path(value), flag)
    text = repr(str(value) if isinstance(value, Path) else value)
    require(type_hints.fits(hint, value), flag, text, type_hints.describe(hint))


def read(hint: Any, words: Sequence[str], flag: str) -> Any:
    """Converts the words of a command line to a value.

    Raises UsageError with the flag and the expected value if they do not fit the type
    hint.
    """
    try:
        if type_hints.is_path(hint):
            require_path(Path(*words), flag)
        return type_hints.read(hint, words)
    except (ValueError, OverflowError):
        got = quote(" ".join(words)) if words else "no value"
        expected = type_hints.describe(hint)
        raise UsageError(f"{flag} must be {expected}; got {got}") from None


def require_path(path: Path, flag: str) -> None:
    """Raises UsageError unless TensorFlow can use the path and a message can show it on
    one line.

    A `~` at the beginning is refused: a shell does not expand it after `=` or in
    quotes, and a directory of this name would be created.
    """
    expected = "a path in UTF-8 without control characters"
    require(formats.is_printable(str(path)), flag, repr(str(path)), expected)
    if path.parts[:1] and path.parts[0].startswith("~"):
        raise UsageError(
            f"{flag}: the ~ of {path} is not expanded here; write the whole path, "
            "such as one that begins with $HOME"
        )


def section_name(kind: type) -> str:
    """The name of a section of a config: `train` for `TrainConfig`, "" for `Config`."""
    return kind.__name__.removesuffix("Config").lower()


class Checked:
    """A section that checks its values when it is created: their types, then
    `_check`.
    """

    def __post_init__(self) -> None:
        section = section_name(type(self))
        prefix = f"--{section}." if section else "--"
        hints = typing.get_type_hints(type(self), include_extras=True)
        for name, hint in hints.items():
            value = objects.names_of(hint, getattr(self, name))
            object.__setattr__(self, name, value)
            require_value(hint, value, prefix + name.replace("_", "-"))
        self._check()

    @classmethod
    def from_file(cls, values: Mapping[str, Any], checked: bool = True) -> Self:
        """A section from its values in a JSON file; only if `checked`, its names are
        looked up.

        Raises KeyError if a value is missing.
        """
        hints = typing.get_type_hints(cls, include_extras=True)
        fields = {
            name: type_hints.from_json(hint, values[name])
            for name, hint in hints.items()
        }
        section = cls(**fields) if checked else object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(section, name, value)
        return section

    def _check(self) -> None:
        """Raises UsageError for combinations of values that are not allowed."""
