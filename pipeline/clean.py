"""Which examples are left out, and why: reads the manifest that names them."""

import json
from pathlib import Path

from pipeline.errors import UsageError


def dropped(manifest: Path | None) -> dict[int, str]:
    """Id -> reason of every example whose action in the manifest is `drop`, not `keep`.

    A manifest has one JSON object a line: {"id": 17, "reason": "blank", "action": "drop"}.
    """
    reasons: dict[int, str] = {}
    if manifest is None:
        return reasons
    try:
        lines = manifest.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--clean.manifest: {manifest} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if type(entry["id"]) is not int or entry["action"] not in ("keep", "drop"):
                raise ValueError
            if entry["action"] == "drop":
                reasons[entry["id"]] = str(entry["reason"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UsageError(
                f"--clean.manifest: line {number} of {manifest} is not of the form "
                '{"id": 17, "reason": "blank", "action": "drop"}'
            ) from None
    return reasons
