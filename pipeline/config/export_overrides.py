"""What the export of a run that is there may be given: nothing that makes another model of it."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pipeline.config import cli_parser, help_text
from pipeline.config.config import Config
from pipeline.config.sections import Export
from pipeline.utils.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Source:
    path: Path | None = None
    """Where the data of the run lie now; with --force."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Clean:
    manifest: Path | None = None
    """Where the manifest lies now that the run was given; with --force."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Data:
    cache: Literal["auto", "device", "memory", "disk", "none"] = "auto"
    """Where decoded examples are kept."""
    cache_directory: Path | None = None
    """Folder of the disk cache; None: $XDG_CACHE_HOME/pipeline, else ~/.cache/pipeline."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Runtime:
    replicas: Literal["auto"] | int = "auto"
    """Copies of the model, if it was trained with another number; with --force."""
    devices: str = "auto"
    """GPUs by their numbers in nvidia-smi, such as `0,2`, or `cpu`."""
    gpu_memory: str | None = None
    """Limit on each GPU's memory, such as `8GiB` or `80%`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Exports the model of a run again, without training. What is not given is as in the run; what
    would make another model of it cannot be given."""

    export: Export
    source: _Source = _Source()
    clean: _Clean = _Clean()
    data: _Data = _Data()
    runtime: _Runtime = _Runtime()
    force: bool = False
    """Accept what lies elsewhere now, and another number of replicas."""


def changes(words: Sequence[str]) -> dict[str, Any]:
    """As `flags.changes` of a Config; UsageError for an option that training alone takes."""
    found = cli_parser.changes(words, Config)
    if "path" in found.get("source", {}):
        found["source"]["path"] = Path(" ".join(found["source"]["path"]))
    _require(found, Options, "--")
    if not found.get("export", {}).get("enabled", True):
        raise UsageError("--export.no-enabled switches the export off; remove it")
    return found


def _require(found: Mapping[str, Any], kind: type, before: str) -> None:
    known = {field.name: field.type for field in dataclasses.fields(kind)}
    for name, value in found.items():
        flag = f"{before}{name.replace('_', '-')}"
        inside = known.get(name)
        if isinstance(value, dict) and dataclasses.is_dataclass(inside):
            _require(value, inside, f"{flag}.")
        elif inside is None:
            if isinstance(value, dict) and before == "--":  # a section of which nothing is taken
                flag += f".{next(iter(value)).replace('_', '-')}"
            raise UsageError(f"{flag} has no effect on an export, which trains nothing; remove it")


def show(program: str, run: Path, config: Config) -> None:
    """Prints help with the values of a run's config as defaults, and ends the process."""
    sections = {}
    for field in dataclasses.fields(Options):
        if dataclasses.is_dataclass(field.type):
            own = getattr(config, field.name)
            names = [option.name for option in dataclasses.fields(field.type)]
            sections[field.name] = field.type(**{name: getattr(own, name) for name in names})
    about = " ".join((Options.__doc__ or "").split())
    print(help_text.page(program, about, Options(**sections), {"RUN": f"Run directory: {run}"}))
    sys.exit(0)
