"""The manifest of a cleaning: one JSON object a line, what was found and what is done about it.

{"id": 17, "file": "cats/17.jpg", "split": "train", "reason": "blank", "action": "drop"}

`action` is `drop` (the example is left out), `keep` (only listed) or `stop` (no run goes on). What
is about two examples has `of` and `of_file`, the other one; members of a cluster of duplicates
have `group`, the smallest id among them; `detail` says more. The file may be edited by hand.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline import run_directory
from pipeline.errors import UsageError

ACTIONS = ("stop", "drop", "keep")


def write(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Writes beside and renames; replaces what was there."""
    lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries]
    run_directory.write_text(path, "".join(lines))


def read(path: Path, flag: str = "--clean.manifest") -> list[dict[str, Any]]:
    """All entries; `id`, `reason` and `action` are there.

    Raises UsageError naming the file and the line that is wrong.
    """
    return [entry for _, entry in _entries(path, flag)]


def dropped(path: Path | None, allow_leakage: bool = False) -> dict[int, str]:
    """Id -> reason of every example to be left out.

    Raises UsageError for a file that is no manifest, and for an entry whose action is `stop`,
    unless `allow_leakage` takes it for `keep`.
    """
    reasons: dict[int, str] = {}
    for number, entry in _entries(path, "--clean.manifest") if path else ():
        if entry["action"] == "stop" and not allow_leakage:
            raise UsageError(
                f"--clean.manifest: line {number} of {path} stops the run: {entry['reason']} of "
                f"{entry.get('file', entry['id'])}; change its action to drop or keep, or give "
                "--clean.allow-leakage"
            )
        if entry["action"] == "drop":
            reasons[entry["id"]] = str(entry["reason"])
    return reasons


def groups(path: Path | None) -> dict[int, int]:
    """Id -> group of the examples that belong together; no split may divide a group.

    Raises UsageError for a file that is no manifest.
    """
    entries = read(path) if path else []
    return {entry["id"]: entry["group"] for entry in entries if "group" in entry}


def _entries(path: Path, flag: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{flag}: {path} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if type(entry["id"]) is not int or entry["action"] not in ACTIONS:
                raise ValueError
            if type(entry.get("group", 0)) is not int:
                raise ValueError
            entry["reason"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UsageError(
                f"{flag}: line {number} of {path} is not of the form "
                '{"id": 17, "reason": "blank", "action": "drop"}'
            ) from None
        yield number, entry
