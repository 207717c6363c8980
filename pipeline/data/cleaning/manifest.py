"""The manifest of a cleaning: one JSON object a line, what was found and what is done about it.

{"id": 17, "file": "cats/17.jpg", "split": "train", "reason": "blank", "action": "drop"}

`action` is `drop` (the example is left out), `keep` (only listed) or `stop` (no run goes on). What
is about two examples has `of`, the id of the other one, and `of_file`; `detail` says more. Only
`id`, `reason` and `action` must be there, and the file may be edited by hand.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.utils import files, safe_io
from pipeline.utils.errors import UsageError

Entry = Mapping[str, Any]
ACTIONS = ("stop", "drop", "keep")


def write(path: Path, entries: Iterable[Entry]) -> None:
    """Writes beside and renames; replaces what was there."""
    files.write_text(path, "".join(_line(entry) + "\n" for entry in entries))


def _line(entry: Entry) -> str:
    text = json.dumps(entry, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # the name of a file need not be Unicode
        return json.dumps(entry)
    return text


def read(path: Path) -> list[Entry]:
    """All entries, each with `id`, `reason` and `action`.

    Raises UsageError naming the file and the line that is wrong.
    """
    try:
        lines = safe_io.read_text(path).split("\n")
    except (OSError, ValueError) as error:
        raise UsageError(f"--clean.manifest: {path} cannot be read: {error}") from None
    entries = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = safe_io.parse_json(line)
            ids = (entry["id"], entry.get("of", 0))
            whole = all(type(id) is int and -(2**63) <= id < 2**63 for id in ids)
            if not whole or entry["action"] not in ACTIONS or type(entry["reason"]) is not str:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(
                f"--clean.manifest: line {number} of {path} is not of the form "
                '{"id": 17, "reason": "blank", "action": "drop"}'
            ) from None
        entries.append(entry)
    return entries


def decided(entries: Iterable[Entry], action: str) -> list[Entry]:
    """The same with another action in place of `stop`."""
    return [{**e, "action": action} if e["action"] == "stop" else e for e in entries]


def dropped(entries: Iterable[Entry]) -> dict[int, str]:
    """Id -> reason of every example that is left out."""
    return {e["id"]: str(e["reason"]) for e in entries if e["action"] == "drop"}


def stopping(entries: Iterable[Entry]) -> list[Entry]:
    """The entries for which no run goes on; an example that is left out anyhow stops nothing."""
    entries = list(entries)
    gone = dropped(entries)
    return [e for e in entries if e["action"] == "stop" and not {e["id"], e.get("of")} & set(gone)]


def groups(entries: Iterable[Entry]) -> dict[int, int]:
    """Id -> group of the examples that hang together by `of`; a split must not divide a group.

    A group is the smallest id in it; examples that are alone do not appear.
    """
    parent: dict[int, int] = {}

    def root(id: int) -> int:
        while parent.setdefault(id, id) != id:
            parent[id] = parent[parent[id]]  # halves the path: later searches are short
            id = parent[id]
        return id

    for entry in entries:
        if "of" in entry:
            low, high = sorted((root(entry["id"]), root(entry["of"])))
            parent[high] = low
    return {id: root(id) for id in parent}
