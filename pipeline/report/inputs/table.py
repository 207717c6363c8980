"""Report views of the input `table`."""

import html
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.report.input_report import InputReport
from pipeline.tasks.inputs.table import UNKNOWN, TableInput


class TableReport(InputReport):
    """Shows an example of `table`."""

    input: TableInput

    def _values(self, example: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """The name of each column with its value in words."""
        columns = {}
        for name in ("numbers", "gaps", "codes", "dates", "texts"):
            if name in example:
                columns[name] = np.asarray(example[name])[None]
        values = self.input.request(columns).values()
        for column, (value,) in zip(self.input.columns, values, strict=True):
            if isinstance(value, bytes):
                text = value.decode(errors="replace").replace(UNKNOWN, "(unknown)")
            else:
                text = "" if np.isnan(value) else _number(float(value), column)
            yield column["name"], text

    def html(self, example: Mapping[str, Any]) -> str:
        rows = []
        for name, value in self._values(example):
            rows.append(
                f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            )
        return f'<div class="table"><table>{"".join(rows)}</table></div>'

    def draw(self, axes: Any, example: Mapping[str, Any]) -> None:
        """Writes the first columns with their values."""
        axes.set(xticks=[], yticks=[])
        lines = [f"{name[:14]}: {value[:18]}" for name, value in self._values(example)]
        axes.text(
            0.02,
            0.98,
            "\n".join(lines[:11]),
            fontsize=5.5,
            linespacing=1.5,
            va="top",
            parse_math=False,
            transform=axes.transAxes,
            in_layout=False,  # measuring texts takes longest
        )


def _number(value: float, column: Mapping[str, Any]) -> str:
    """A number that was scaled in float32, without the digits that it has lost."""
    digits = 6 - math.floor(math.log10(column.get("deviation", 1.0)))
    return f"{round(value, digits) + 0.0:.6g}"  # never -0
