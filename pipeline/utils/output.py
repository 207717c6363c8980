"""What a command prints: lines for people, only its result, JSON, or only warnings."""

import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TextIO

Mode = Literal["text", "quiet", "json", "silent"]


@dataclasses.dataclass(frozen=True, eq=False)
class Console:
    """How and where this process prints."""

    mode: Mode = "text"
    stream: TextIO | None = None
    """Standard output; None: `sys.stdout`, which is not redirected."""
    bar: Any = None
    """The `progress_bar.ProgressBar`, if there is one."""
    stages: list[tuple[str, float]] = dataclasses.field(default_factory=list)
    """The stages of this process, with the times at which they began."""
    in_python: Callable[[str], str] | None = None
    """In a call of `fit`: turns the options in a text into arguments."""


_entered = [Console()]


def current() -> Console:
    """The console in use."""
    return _entered[-1]


@contextlib.contextmanager
def changed(**changes: Any) -> Iterator[None]:
    """Within the block, `current` has these attributes, in all threads."""
    new = dataclasses.replace(current(), **changes)
    _entered.append(new)
    try:
        yield
    finally:
        _entered.remove(new)


def mode() -> Mode:
    """How lines are printed now."""
    return current().mode


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
    if new in ("text", mode()):
        yield
        return
    with changed(mode=new, stream=current().stream or sys.stdout):
        if new == "silent":
            yield
        elif new == "json":
            with contextlib.redirect_stdout(sys.stderr):
                yield
        else:
            with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
                yield


def write_line(line: str) -> None:
    """Prints a line of the result, whatever else is dropped."""
    print(line, file=current().stream or sys.stdout, flush=True)


def write_json(event: str, text: str, fields: Mapping[str, Any]) -> None:
    """Prints a JSON object with the Unix time; `fields` has no infinite numbers and no
    NaN.
    """
    entry = {"event": event, "time": round(time.time(), 3), "text": text, **fields}
    write_line(json.dumps(entry, allow_nan=False))
