"""Counts the examples of TFRecord files and takes their sha256, to find damage later."""

import json
from pathlib import Path

from pipeline.config.validation import require_path
from pipeline.utils.errors import UsageError, run_command

PROGRAM = "python -m pipeline.shards"
_HELP = f"""\
usage: {PROGRAM} FOLDER > FOLDER/shards.json

Prints the number of examples and the sha256 of each TFRecord file in FOLDER, as JSON. Saved as
shards.json beside the files, it is compared by every later run, which so finds a file that was
cut off between two records, replaced, or removed."""


def main(arguments: list[str]) -> int:
    """`python -m pipeline.shards FOLDER`: prints the manifest of a folder."""
    if arguments[:1] in (["--help"], ["-h"]):
        print(_HELP)
        return 0
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise UsageError(f"give one folder: {PROGRAM} FOLDER > FOLDER/shards.json")
    folder = Path(arguments[0])
    require_path(folder, "FOLDER")
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a directory")
    from pipeline.data import shards

    print(json.dumps(shards.manifest(folder), indent=1))
    return 0


if __name__ == "__main__":
    run_command(main)
