"""What a command prints: lines for people, only its result, JSON, or only warnings."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TextIO

Mode = Literal["text", "quiet", "json", "silent"]
_mode: Mode = "text"
_stream: TextIO | None = None
"""Standard output; None: `sys.stdout`, which is not redirected."""


def mode() -> Mode:
    """How lines are printed now."""
    return _mode


def of_words(words: Sequence[str]) -> Mode:
    """The mode that a command line asks for, before its options are checked."""
    if {"--log.json", "--json"} & set(words):
        return "json"
    if {"--log.quiet", "--quiet"} & set(words):
        return "quiet"
    return "text"


def of_options(log: Any) -> Mode:
    """The mode that options of the section `log` ask for, as a mapping or an object."""
    options = log if isinstance(log, Mapping) else getattr(log, "__dict__", {})
    if options.get("json"):
        return "json"
    return "quiet" if options.get("quiet") else "text"


@contextlib.contextmanager
def using(new: Mode) -> Iterator[None]:
    """Prints in this mode within the block.

    Whatever else is printed to `sys.stdout`, such as by a callback of the user, is
    dropped if quiet, goes to `sys.stderr` if standard output is for JSON, and is
    printed if silent.
    """
    global _mode, _stream
    before = (_mode, _stream)
    if new in ("text", _mode):
        yield
        return
    _mode = new
    _stream = _stream or sys.stdout
    try:
        if new == "silent":
            yield
        elif new == "json":
            with contextlib.redirect_stdout(sys.stderr):
                yield
        else:
            with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
                yield
    finally:
        _mode, _stream = before


def write_line(line: str) -> None:
    """Prints a line of the result, whatever else is dropped."""
    print(line, file=_stream or sys.stdout, flush=True)


def write_json(event: str, text: str, fields: Mapping[str, Any]) -> None:
    """Prints a JSON object with the Unix time; `fields` has no infinite numbers and no
    NaN.
    """
    entry = {"event": event, "time": round(time.time(), 3), "text": text, **fields}
    write_line(json.dumps(entry, allow_nan=False))
