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
        escaped = not line.isprintable()  # a file name need not be Unicode
        lines.append((json.dumps(entry) if escaped else line) + "\n")
    files.write_text(path, "".join(lines))


def read(path: Path) -> list[Entry]:
    """All entries, each with `id`, `reason` and `action`.

    Raises UsageError that names the file and the first invalid line.
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
            valid = all(type(id) is int and -(2**63) <= id < 2**63 for id in ids)
            if (
                not valid
                or entry["action"] not in ACTIONS
                or type(entry["reason"]) is not str
            ):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(
                f"--clean.manifest: line {number} of {path} must have the form "
                '{"id": 17, "reason": "blank", "action": "drop"}'
            ) from None
        entries.append(entry)
    return entries


def decided(entries: Iterable[Entry], action: str) -> list[Entry]:
    """The entries, with this action instead of `stop`."""
    return [{**e, "action": action} if e["action"] == "stop" else e for e in entries]


def dropped(entries: Iterable[Entry]) -> dict[int, str]:
    """Maps the id of each excluded example to the reason."""
    return {e["id"]: str(e["reason"]) for e in entries if e["action"] == "drop"}


def stopping(entries: Iterable[Entry]) -> list[Entry]:
    """The entries that stop a run, except those about examples that are excluded
    anyway.
    """
    entries = list(entries)
    gone = dropped(entries).keys()
    return [
        e
        for e in entries
        if e["action"] == "stop" and not gone & {e["id"], e.get("of")}
    ]


def groups(entries: Iterable[Entry]) -> dict[int, int]:
    """Maps ids of examples connected by `of` to their group, which must stay in one
    split.

    A group is identified by its smallest id. Examples without connections are omitted.
    """
    from scipy.cluster.hierarchy import DisjointSet

    pairs = [(entry["id"], entry["of"]) for entry in entries if "of" in entry]
    sets = DisjointSet(dict.fromkeys(id for pair in pairs for id in pair))
    for pair in pairs:
        sets.merge(*pair)
    return {id: min(group) for group in sets.subsets() for id in group}
