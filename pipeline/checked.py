"""Sections of a config that check their own values: types first, then what each adds."""

import inspect
import re
import typing
from typing import Any

import typeguard

from pipeline.errors import UsageError


def require(condition: bool, flag: str, received: Any, meant: str) -> None:
    """Raises UsageError naming the flag and what it must be, unless the condition holds."""
    if not condition:
        raise UsageError(f"{flag} must be {meant}, received {received}")


class Checked:
    """A section whose values have the types of its fields, and pass its own `_check`."""

    def __post_init__(self) -> None:
        section = type(self).__name__.lower()
        prefix = "--" if section == "config" else f"--{section}."
        for name, hint in typing.get_type_hints(type(self)).items():
            value = getattr(self, name)
            try:
                typeguard.check_type(value, hint)
            except typeguard.TypeCheckError:
                meant = re.sub(r"(typing|pipeline.config)\.", "", inspect.formatannotation(hint))
                meant = re.sub(r"Literal\[(.*?)\]", r"one of \1", meant)
                require(False, prefix + name.replace("_", "-"), repr(value), meant)
        self._check()

    def _check(self) -> None:
        """Raises UsageError for values that their types allow and the run does not."""
