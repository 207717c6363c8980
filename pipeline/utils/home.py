"""The user's home written as `~`: what a run leaves behind names nobody's folders."""

import os
import re
from typing import Any


def folded(values: Any) -> Any:
    """JSON values with `~` for the home folder wherever a text names it."""
    home = os.path.expanduser("~").rstrip("/")
    if not home.startswith("/"):  # unknown, or the root of the disk, which is nobody's
        return values
    return _mapped(values, re.compile(rf"(?<![\w.-]){re.escape(home)}(?![\w.-])"), "~")


def unfolded(values: Any) -> Any:
    """JSON values with the home folder of now for `~` at the beginning of a path."""
    home = os.path.expanduser("~").rstrip("/")
    if not home.startswith("/"):
        return values
    return _mapped(values, re.compile(r"\A~(?=/)"), home)


def _mapped(values: Any, pattern: re.Pattern[str], new: str) -> Any:
    if isinstance(values, str):
        return pattern.sub(lambda _: new, values)
    if isinstance(values, dict):
        return {name: _mapped(value, pattern, new) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_mapped(value, pattern, new) for value in values]
    return values
