"""Counts the examples of TFRecord files and computes their sha256, to detect damage
later.
"""

import json
from pathlib import Path

from pipeline.config.validation import require_path
from pipeline.utils.errors import UsageError, run_command

PROGRAM = "python -m pipeline.shards"
_HELP = f"""\
usage: {PROGRAM} DIRECTORY > DIRECTORY/shards.json

Prints the number of examples and the sha256 of each TFRecord file in DIRECTORY, as
JSON. Save this as shards.json next to the files: every later run compares the files
with it, and detects files that were truncated between two records, replaced, or
removed."""


def main(arguments: list[str]) -> int:
    """`python -m pipeline.shards DIRECTORY`: prints the manifest of a directory."""
    if arguments[:1] in (["--help"], ["-h"]):
        print(_HELP)
        return 0
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise UsageError(
            f"expected one directory: {PROGRAM} DIRECTORY > DIRECTORY/shards.json"
        )
    folder = Path(arguments[0])
    require_path(folder, "DIRECTORY")
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a directory")
    from pipeline.data.records import manifest

    print(json.dumps(manifest(folder), indent=1))
    return 0


if __name__ == "__main__":
    run_command(main)
