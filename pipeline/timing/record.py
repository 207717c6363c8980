"""The table of a benchmark, and its record as Markdown and JSON."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.timing.rounds import Line
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
_ABOUT = """\
Each round measures every line of a part once, in alternating order. A ratio is the
median of the ratios of the rounds: of speeds, times, or CPU times per image. CPU is CPU
time per image, or of a process. "Resident step" is the compiled step on one batch that
stays on the device, and "feed only" the input pipeline without training. One line of a
part is measured twice, also as "(repeated)": if the median of their ratios is not
within 3% of 1, comparisons are inconclusive. Targets are those of this package for
CIFAR-10 on a CPU. Start-up is that of the recipe `digits`, and memory is measured with
generated photographs. Plain Keras trains in float32, its default, unless bfloat16 is
named."""


def row(line: Line) -> list[str]:
    """The cells of a line."""
    low, high = line.bound or (0.0, 0.0)
    bound = f"at least {low:.3g}" if high == math.inf else f"{low:g} to {high:g}"
    bound = (bound if low else f"at most {high:g}") * bool(line.bound)
    cost, per_image = line.cpu or 0.0, line.unit == "images/s"
    cpu = f"{1e6 * cost:,.0f} us" if per_image else f"{cost:.2f} s" * (line.unit == "s")
    value, ratio = (str(found or "") for found in (line.value, line.ratio))
    result = ": ".join(filter(None, (line.verdict, line.note)))
    value = f"{value} {line.unit}".strip()
    return [line.part, line.name, value, cpu, line.compared, ratio, bound, result]


def table(lines: Sequence[Line]) -> str:
    """The lines as aligned text."""
    return console.table(map(row, lines), HEADERS)


def write(
    folder: Path, name: str, facts: Mapping[str, Any], lines: Sequence[Line]
) -> Path:
    """Writes NAME.md and NAME.json, or NAME-2 and so on, without the directories of
    files.

    `facts` says what was measured, where and how. Returns the path of the Markdown
    file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = (folder / f"{name}{f'-{n}' * (n > 1)}.md" for n in range(1, 10**6))
    path = next(path for path in paths if not path.exists())
    found = [{**dataclasses.asdict(line), "result": line.verdict} for line in lines]
    cells = [HEADERS, ["---"] * len(HEADERS), *map(row, lines)]
    drawn = [
        f"| {' | '.join(cell.replace('|', '/') for cell in one)} |" for one in cells
    ]
    known = [f"- {key}: {value}" for key, value in facts.items()]
    page = "\n".join([f"# {name}", "", *known, "", _ABOUT, "", *drawn, ""])
    files.write_text(path, _without_directories(page))
    text = json.dumps({**facts, "lines": found})
    files.write_json(path.with_suffix(".json"), json.loads(_without_directories(text)))
    return path


def _without_directories(text: str) -> str:
    return re.sub(r"(?<![\w.:/-])(~|\.{1,2})?/([\w.@~-]+/)+", "", text)
