"""Sections of a config that check their own values: types first, then what each adds."""

import functools
import inspect
import re
import typing
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typeguard

from pipeline.utils.errors import UsageError

# By itself typeguard looks at the first item alone: a config file may hold [8, null].
_ALL_ITEMS = typeguard.CollectionCheckStrategy.ALL_ITEMS


def require(condition: bool, flag: str, received: Any, meant: str) -> None:
    """Raises UsageError naming the flag and what it must be, unless the condition holds."""
    if not condition:
        raise UsageError(f"{flag} must be {meant}, received {received}")


def require_range(given: Sequence[float], flag: str, low: float, high: float | None) -> None:
    """Raises UsageError unless `given` is two numbers, the smaller first, from `low` to `high`."""
    good = len(given) == 2 and low <= given[0] <= given[1] and (high is None or given[1] <= high)
    limits = f"at least {low:g}" if high is None else f"from {low:g} to {high:g}"
    received = ",".join(f"{number:g}" for number in given)
    require(good, flag, received, f"two numbers with a comma, the smaller first, {limits}")


def require_file_name(name: str, flag: str) -> None:
    """Raises UsageError unless `name` can be one plain file name on any file system."""
    plain = name not in ("", ".", "..") and not set(name) & set("/\\")
    require(
        plain and _storable(name) and len(name.encode()) <= 200,
        flag,
        repr(name),
        "a plain file name",
    )


def require_path(path: Path, flag: str) -> None:
    """Raises UsageError unless TensorFlow can use the path, and a message show it on a line.

    Nor for `~`, which a shell leaves as it is after `=` or in quotes: a folder of that name would
    be made, and a saved config would mean the home folder by it.
    """
    require(_storable(str(path)), flag, repr(str(path)), _PATH)
    if path.parts[:1] and path.parts[0].startswith("~"):
        raise UsageError(
            f"{flag}: the ~ of {path} is not expanded here; give the whole path, "
            "such as one that begins with $HOME"
        )


def _storable(text: str) -> bool:
    """Whether TensorFlow, which writes UTF-8, can use it in a path, and a message show it."""
    # A line break would part a message in two, an escape would rule the terminal.
    return not {"Cc", "Cs", "Zl", "Zp"}.intersection(map(unicodedata.category, text))


_PATH = "a path in UTF-8 without control characters"
_hints = functools.cache(typing.get_type_hints)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has this type; True and False are no numbers, as they are to Python."""
    items = value if isinstance(value, tuple) else (value,)
    allowed = bool in (hint, *typing.get_args(hint))
    if not allowed and any(isinstance(item, bool) for item in items):
        return False
    try:
        typeguard.check_type(value, hint, collection_check_strategy=_ALL_ITEMS)
    except typeguard.TypeCheckError:
        return False
    return True


class Checked:
    """A section whose values have the types of its fields, and pass its own `_check`."""

    def __post_init__(self) -> None:
        section = type(self).__name__.lower()
        prefix = "--" if section == "config" else f"--{section}."
        for name, hint in _hints(type(self)).items():
            value = getattr(self, name)
            if type(value) is hint:  # most are, and the checker takes 40 microseconds
                continue
            if not _fits(value, hint):
                meant = re.sub(
                    r"(typing|pipeline.config.config|pipeline.config.sections|pipeline.config.source_section)\.",
                    "",
                    inspect.formatannotation(hint),
                )
                meant = re.sub(r"Literal\[(.*?)\]", r"one of \1", meant)
                require(False, prefix + name.replace("_", "-"), repr(value), meant)
            if isinstance(value, Path):
                require_path(value, prefix + name.replace("_", "-"))
        self._check()

    def _check(self) -> None:
        """Raises UsageError for values that their types allow and the run does not."""
