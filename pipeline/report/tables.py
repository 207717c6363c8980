"""Tables of a run: one per class on the console, `predictions.csv`, columns in a notebook."""

import csv
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.evaluation.evaluate import Evaluated
from pipeline.utils import console
from pipeline.utils.console import say

PREDICTIONS = "predictions.csv"
_ROWS = 15  # on the console
_ENDS = 10  # first and last rows of a long table in a notebook


class Columns(dict[str, Any]):
    """A dictionary of columns of equal length, which is shown as a table.

    `pandas.DataFrame(columns)` makes a data frame of it.
    """

    def __str__(self) -> str:
        return console.table(self._rows(), list(self), right=range(len(self)))

    def _repr_html_(self) -> str:
        return html_table(list(self), self._rows())

    def _rows(self) -> list[list[str]]:
        rows = list(zip(*self.values(), strict=True))
        left_out = [["..."] * len(self)] * (len(rows) > 2 * _ENDS)
        shown = [*rows[:_ENDS], *rows[max(_ENDS, len(rows) - _ENDS) :]]
        texts = [[number(value) for value in row] for row in shown]
        return [*texts[:_ENDS], *left_out, *texts[_ENDS:]]


def number(value: Any) -> str:
    """A value as text, with at most six significant digits."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def html_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; all texts are escaped."""
    lines = [("th", headers), *(("td", row) for row in rows)]
    cells = (
        "".join(f"<{tag}>{html.escape(console.plain(str(text)))}</{tag}>" for text in line)
        for tag, line in lines
    )
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def predictions(found: Evaluated) -> Columns:
    """A row for each example: the name of its file, truth and answer."""
    count = len(found.columns["id"])
    files = [found.location(position) for position in range(count)]
    return Columns(file=files, **found.task.predictions(found.answers))


def as_csv(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """The content of a CSV file in UTF-8."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows([number(v) for v in row] for row in zip(*columns.values(), strict=True))
    return text.getvalue().encode(errors="backslashreplace")


def say_classes(found: Evaluated) -> None:
    """Prints the task's table of the metrics, the worst rows first."""
    headers, rows = found.task.table(found.metrics)
    if not rows:
        return
    shown = console.table(rows[:_ROWS], headers, right=range(1, len(headers) - 1))
    for line in shown.splitlines():
        say("", line)
    if len(rows) > _ROWS:
        say("", f"... and {len(rows) - _ROWS:,} more, which are better")


def say_mistakes(found: Evaluated, columns: Columns) -> None:
    """Prints how many answers are wrong, and the worst one; `columns` are from `predictions`."""
    order, total = found.task.mistakes(found.answers), f"{len(columns['file']):,}"
    if not len(order):
        say("mistakes", f"none: all {total} answers of {found.split} are right")
        return
    file, *shown = [(name, number(values[order[0]])) for name, values in columns.items()][:4]
    worst = f"{file[1]} ({', '.join(map(' '.join, shown))})"
    if "correct" in columns:
        say("mistakes", f"{len(order):,} of {total} answers; the most confident: {worst}")
    else:
        say("worst", f"{worst}, of {total} answers")
