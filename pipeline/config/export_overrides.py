"""The options that may differ when a run is exported again: none of them changes the model."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config import cli_parser, help_text
from pipeline.config.config import Config
from pipeline.config.sections import Export
from pipeline.utils.errors import UsageError

ALLOWED = {
    "": ("force",),
    "source": ("path",),
    "clean": ("manifest",),
    "data": ("cache", "cache_directory"),
    "runtime": ("replicas", "devices", "gpu_memory"),
    "export": tuple(field.name for field in dataclasses.fields(Export) if field.name != "enabled"),
}
"""Section ("" for the top level) -> options."""


def changes(words: Sequence[str]) -> dict[str, Any]:
    """The values given by the words, nested as for `Config.changed`.

    Raises:
        UsageError: An option is unknown, or applies to training only.
    """
    found = cli_parser.changes(words, Config)
    for name, value in found.items():
        section, options = (name, value) if isinstance(value, dict) else ("", {name: value})
        if wrong := sorted(options.keys() - ALLOWED.get(section, ())):
            flag = f"--{section}.{wrong[0]}" if section else f"--{wrong[0]}"
            raise UsageError(f"{flag.replace('_', '-')} does not apply to an export; remove it")
    if "path" in found.get("source", {}):
        found["source"]["path"] = Path(" ".join(found["source"]["path"]))
    return found


def show_help(program: str, run: Path, config: Config) -> None:
    """Prints the allowed options with the values of a run as defaults, and ends the process."""
    about = "Exports the model of a run again, without training. All other options are the run's."
    about += " If its data has been moved, add --source.path PATH --force."
    print(help_text.page(f"{program} {run}", about, config, only=ALLOWED))
    sys.exit(0)
