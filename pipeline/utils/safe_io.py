"""Bounded reading of text and JSON: nothing larger than this package writes itself.

Nothing here runs code that it reads: no pickle, no YAML.
"""

import json
from pathlib import Path
from typing import Any

MOST_JSON = 2**26
"""Largest JSON file in bytes: a history of a million epochs is shorter."""
MOST_TEXT = 2**30
"""Largest list with a line for each example, in bytes."""


def read_bytes(path: Path, most: int) -> bytes:
    """The contents of a file.

    Raises:
        OSError: It cannot be read.
        ValueError: It is longer than `most` bytes.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is longer than {most:,} bytes")
    return content


def read_text(path: Path, most: int = MOST_TEXT) -> str:
    """Text in UTF-8; raises ValueError for any other encoding, and as `read_bytes` does."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None


def read_json(path: Path, most: int = MOST_JSON) -> Any:
    """The values of a JSON file; raises as `read_text` and `parse_json` do."""
    return parse_json(read_text(path, most))


def parse_json(text: str) -> Any:
    """The values of JSON; raises ValueError for anything else, or if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
