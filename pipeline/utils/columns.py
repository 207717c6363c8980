"""Columns of a table, shown as text or written as CSV."""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.utils.console import table

_ENDS = 10  # first and last rows of a long table


class Columns(dict[str, Any]):
    """Maps a name to the values of all rows; shown as a table.

    `pandas.DataFrame(columns)` converts it.
    """

    def rows(self) -> list[list[str]]:
        """The values as texts, numbers with at most six significant digits."""
        return [list(row) for row in self._text_rows()]

    def _text_rows(self) -> Iterator[tuple[str, ...]]:
        return zip(*map(_texts, self.values()), strict=True)

    def csv(self) -> bytes:
        """The content of a CSV file in UTF-8."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self)
        writer.writerows(self._text_rows())
        return text.getvalue().encode(errors="backslashreplace")

    def __repr__(self) -> str:
        rows = self.rows()
        if len(rows) > 2 * _ENDS:
            rows[_ENDS:-_ENDS] = [["..."] * len(self)]
        return table(rows, list(self), right=range(len(self)))


def _texts(values: Any) -> Iterable[str]:
    """The values of a column as texts, those of one type at once."""
    kinds = {*map(type, values)}
    if kinds == {str}:
        return values
    return map("{:.6g}".format if kinds == {float} else _text, values)


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
