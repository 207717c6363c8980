"""Reads text and JSON, without formats that can run code: no pickle, no YAML."""

import json
from pathlib import Path
from typing import Any


def read_text(path: Path) -> str:
    """Text in UTF-8; raises OSError, and ValueError for any other encoding."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"it is not text in UTF-8 (line {line})") from None


def read_json(path: Path) -> Any:
    """The values of a JSON file; raises as `read_text` and `parse_json` do."""
    return parse_json(read_text(path))


def parse_json(text: str) -> Any:
    """The values of JSON.

    Raises ValueError for anything else, or if it is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
