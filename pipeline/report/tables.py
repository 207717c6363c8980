"""Columns of equal length, shown as a table or written as CSV; the table of the classes."""

import csv
import io
import math
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.utils.console import table

_ENDS = 10  # first and last rows of a long table


class Columns(dict[str, Any]):
    """Name -> values, one for each row; shown as a table. `pandas.DataFrame(columns)` takes it."""

    def rows(self) -> list[list[str]]:
        """The values as texts, numbers with at most six significant digits."""
        return [
            [f"{value:.6g}" if isinstance(value, float) else str(value) for value in row]
            for row in zip(*self.values(), strict=True)
        ]

    def csv(self) -> bytes:
        """The content of a CSV file in UTF-8."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self, *self.rows()])
        return text.getvalue().encode(errors="backslashreplace")

    def __repr__(self) -> str:
        rows = self.rows()
        if len(rows) > 2 * _ENDS:
            rows[_ENDS:-_ENDS] = [["..."] * len(self)]
        return table(rows, list(self), right=range(len(self)))


def class_table(metrics: Mapping[str, Any], most: int = 15) -> str:
    """A row for each class that has examples, that of the lowest F1 first; empty for other tasks.

    The last column is the class that is predicted most often instead, and how often.
    """
    names, rows = list(metrics.get("per_class", ())), []
    for at, (name, scores) in enumerate(metrics.get("per_class", {}).items()):
        wrong = [n * (i != at) for i, n in enumerate(metrics["confusion_matrix"][at])]
        count = max(wrong)
        other = f"{names[wrong.index(count)][:30]} ({count:,})" if count else ""
        numbers = [f"{scores[key]:.3f}" for key in ("f1", "precision", "recall")]
        if scores["examples"]:
            rows += [[name[:30], f"{scores['examples']:,}", *numbers, other]]
    rows = sorted(rows, key=lambda row: row[2])
    if not rows:
        return ""
    header = ["class", "examples", "f1", "precision", "recall", "most often confused with"]
    more = f"\n... and {len(rows) - most:,} more, which are better" if len(rows) > most else ""
    return table(rows[:most], header, right=range(1, 5)) + more


def notes(metrics: Mapping[str, Any], split: str) -> Iterator[str]:
    """Lines about an accuracy that says little: of one class, or of few examples."""
    sizes = {scores["examples"]: name for name, scores in metrics.get("per_class", {}).items()}
    if not sizes:
        return
    accuracy, count = metrics["accuracy"], metrics["examples"]
    if accuracy <= (share := max(sizes) / count) < 1:
        yield f"{'note':10} no better than always predicting {sizes[max(sizes)]!r} ({share:.3f})"
    if count < 50:
        error = max(2 * math.sqrt(accuracy * (1 - accuracy) / count), 1 / count)
        few = f"only {count} {split} examples".replace(" data ", " ")
        yield f"{'note':10} {few}: the accuracy is uncertain by +-{error:.2f}"
