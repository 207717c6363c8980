"""The manifest: the findings of cleaning, one JSON object per line.

{"id": 17, "file": "cats/17.jpg", "split": "train", "reason": "blank", "action": "drop"}

`action` is `drop` (the example is excluded), `keep` (it is only listed) or `stop` (no
run starts). An entry about a pair has `of`, the id of the other example, and `of_file`;
`detail` explains the finding. Only `id`, `reason` and `action` are required, and the
file may be edited by hand.
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
    """Writes a manifest atomically, replacing an earlier one."""
    lines = []
    for entry in entries:
        line = json.dumps(entry, ensure_ascii=False)
        if not line.isprintable():  # a file name need not be Unicode
            line = json.dumps(entry)
        lines.append(f"{line}\n")
    files.write_text(path, "".join(lines))


def read(path: Path) -> list[Entry]:
    """Reads all entries, each with `id`, `reason` and `action`.

    Raises UsageError naming the file and the first invalid line.
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
            is_valid = _is_valid(entry)
        except (ValueError, KeyError, TypeError, AttributeError):
            is_valid = False
        if not is_valid:
            raise UsageError(
                f"--clean.manifest: line {number} of {path} must have the form "
                '{"id": 17, "reason": "blank", "action": "drop"}'
            )
        entries.append(entry)
    return entries


def _is_valid(entry: Any) -> bool:
    for id in (entry["id"], entry.get("of", 0)):
        if type(id) is not int or not -(2**63) <= id < 2**63:
            return False
    return entry["action"] in ACTIONS and type(entry["reason"]) is str


def replace_stop(entries: Iterable[Entry], action: str) -> list[Entry]:
    """The entries, with this action instead of `stop`."""
    return [
        {**entry, "action": action} if entry["action"] == "stop" else entry
        for entry in entries
    ]


def excluded_ids(entries: Iterable[Entry]) -> dict[int, str]:
    """Maps the ids of examples to exclude to the reason."""
    return {
        entry["id"]: str(entry["reason"])
        for entry in entries
        if entry["action"] == "drop"
    }


def stopping(entries: Iterable[Entry]) -> list[Entry]:
    """The entries that stop a run, unless one of their examples is excluded anyway."""
    entries = list(entries)
    excluded = excluded_ids(entries).keys()
    stops = [entry for entry in entries if entry["action"] == "stop"]
    return [
        entry for entry in stops if excluded.isdisjoint((entry["id"], entry.get("of")))
    ]


def groups(entries: Iterable[Entry]) -> dict[int, int]:
    """Maps ids of examples connected by `of` to their group, which stays in one split.

    A group is identified by its smallest id. Examples without connections are omitted.
    """
    from scipy.cluster.hierarchy import DisjointSet

    pairs = [(entry["id"], entry["of"]) for entry in entries if "of" in entry]
    sets = DisjointSet(dict.fromkeys(id for pair in pairs for id in pair))
    for pair in pairs:
        sets.merge(*pair)
    group_of = {}
    for group in sets.subsets():
        group_of.update(dict.fromkeys(group, min(group)))
    return group_of
