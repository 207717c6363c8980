"""The table of a benchmark, and its record as JSON."""

import dataclasses
import json
import math
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.scripts.timing.rounds import Line
from pipeline.runtime import cpu_info
from pipeline.utils import console, files

HEADERS = (
    "part",
    "what",
    "median (range)",
    "CPU",
    "compared",
    "ratio (range)",
    "target",
    "result",
)


def row(line: Line) -> list[str]:
    """The cells of a line."""
    if line.bound is None:
        target = ""
    elif line.bound[1] == math.inf:
        target = f"at least {line.bound[0]:.3g}"
    elif line.bound[0]:
        target = f"{line.bound[0]:g} to {line.bound[1]:g}"
    else:
        target = f"at most {line.bound[1]:g}"
    cpu = line.cpu or 0.0
    if line.unit == "images/s":
        cost = f"{1e6 * cpu:,.0f} us"
    elif line.unit == "s":
        cost = f"{cpu:.2f} s"
    else:
        cost = ""
    value = f"{line.value or ''} {line.unit}".strip()
    ratio = str(line.ratio or "")
    result = ": ".join(filter(None, (line.verdict, line.note)))
    return [line.part, line.name, value, cost, line.compared, ratio, target, result]


def table(lines: Sequence[Line]) -> str:
    """The lines as aligned text."""
    return console.table(map(row, lines), HEADERS)


def machine() -> str:
    """A name of this machine for a directory: its CPU, cores and instruction set."""
    flags = cpu_info.flags()
    newest = next((name for name in ("avx512f", "avx2", "avx") if name in flags), "")
    model = cpu_info.value("model name") or platform.machine()
    words = f"{model} {cpu_info.cores()} cores {newest}"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def write(
    folder: Path, name: str, facts: Mapping[str, Any], lines: Sequence[Line]
) -> Path:
    """Writes NAME.json, or NAME-2.json and so on, without the directories of files.

    `facts` says what was measured, where and how. Returns the path of the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    number = 1
    while path.exists():
        number += 1
        path = folder / f"{name}-{number}.json"
    rows = [{**dataclasses.asdict(line), "result": line.verdict} for line in lines]
    text = json.dumps({**facts, "lines": rows})
    files.write_json(path, json.loads(_without_directories(text)))
    return path


def _without_directories(text: str) -> str:
    return re.sub(r"(?<![\w.:/-])(~|\.{1,2})?/([\w.@~-]+/)+", "", text)
