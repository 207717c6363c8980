"""Columns of equal length, shown as a table or written as CSV; the table of the classes."""

import csv
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.utils.console import shortened, table
from pipeline.utils.errors import plain

_ENDS = 10  # first and last rows of a long table


class Columns(dict[str, Any]):
    """Name -> values, one for each row; shown as a table. `pandas.DataFrame(columns)` takes it."""

    def __repr__(self) -> str:
        return table(self._rows(), list(self), right=range(len(self)))

    def _repr_html_(self) -> str:
        return html_table(list(self), self._rows())

    def csv(self) -> bytes:
        """The content of a CSV file in UTF-8."""
        text = io.StringIO()
        rows = zip(*self.values(), strict=True)
        csv.writer(text, lineterminator="\n").writerows([self, *(map(cell, row) for row in rows)])
        return text.getvalue().encode(errors="backslashreplace")

    def _rows(self) -> list[list[str]]:
        rows = [list(map(cell, row)) for row in zip(*self.values(), strict=True)]
        left_out = [["..."] * len(self)]
        return rows if len(rows) <= 2 * _ENDS else [*rows[:_ENDS], *left_out, *rows[-_ENDS:]]


def cell(value: Any) -> str:
    """A value as text, with at most six significant digits."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def numbers(metrics: Mapping[str, Any]) -> str:
    """The metrics that are one number, and how many examples they are from."""
    shown = [f"{name} {value:.4f}" for name, value in metrics.items() if isinstance(value, float)]
    examples = [f"({metrics['examples']:,} examples)"] if "examples" in metrics else []
    return "  ".join([*shown, *examples])


def html_table(headers: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; all texts are escaped."""
    lines = [("th", headers), *(("td", row) for row in rows)]
    texts = (
        "".join(f"<{tag}>{html.escape(plain(str(text)))}</{tag}>" for text in line)
        for tag, line in lines
    )
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in texts)}</table>"


def class_table(metrics: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headers, and a row for each class that has examples, that of the lowest F1 first.

    The last column is the class that is answered most often instead, and how often.
    """
    names, counts = list(metrics.get("per_class", ())), metrics.get("confusion_matrix", ())
    rows = []
    for at, (name, row) in enumerate(zip(names, counts, strict=True)):
        scores, wrong = metrics["per_class"][name], [*row[:at], 0, *row[at + 1 :]]
        values = [f"{scores[key]:.3f}" for key in ("precision", "recall", "f1")]
        most = max(wrong)
        other = f"{shortened(names[wrong.index(most)], 30)} ({most:,})" if most else ""
        shown = [shortened(name, 30), f"{scores['examples']:,}", *values, other]
        rows += [(scores["f1"], shown)] * bool(scores["examples"])
    header = ["class", "examples", "precision", "recall", "f1", "most often confused with"]
    return header, [shown for _, shown in sorted(rows, key=lambda row: row[0])]
