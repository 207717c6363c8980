"""Shows how a model answered a split: tables on the console, pictures and a table as files."""

import dataclasses
import functools
import html
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.evaluation.evaluate import Evaluated
from pipeline.report.tables import Columns, cell, html_table, numbers
from pipeline.utils import console, files
from pipeline.utils.console import say
from pipeline.utils.errors import reason

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PREDICTIONS = "predictions.csv"
_ROWS = 15  # of a table on the console


class Evaluation(Evaluated):
    """The answers to labelled data and their metrics, as a notebook shows them."""

    @classmethod
    def of(cls, found: Evaluated) -> "Evaluation":
        """The same with the methods of this class."""
        return cls(**{field.name: getattr(found, field.name) for field in dataclasses.fields(cls)})

    @functools.cached_property
    def predictions(self) -> Columns:
        """A row for each example: the name of its file, truth and answer."""
        return Columns(file=self.locations, **self.task.predictions(self.answers))

    def mistakes(self) -> "Figure":
        """A figure of the worst answers."""
        from pipeline.report import pictures

        return pictures.mistakes(self)

    def __repr__(self) -> str:
        return f"Evaluation({self.split}: {numbers(self.metrics)})"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{html_table(*self.task.table(self.metrics))}"


def show(
    found: Evaluation, folder: Path, history: Mapping[str, list[float]] | None, quiet: bool = False
) -> None:
    """Prints tables unless `quiet`; writes pictures and `predictions.csv` into a directory.

    Never fails, because the model is still to be exported: a note says what cannot be shown.
    `history` maps metrics to their values per epoch; without it, there are no curves.
    """
    try:
        if not quiet:
            say_answers(found)
        files.write_bytes(folder / PREDICTIONS, found.predictions.csv())
    except Exception as error:  # such as a task of the user's own that does not expect this
        say("note", f"{PREDICTIONS} could not be written: {reason(error)}")
    try:
        from pipeline.report import pictures  # fails if matplotlib is badly configured

        pictures.write(found, folder, history)
    except Exception as error:
        say("note", f"pictures could not be drawn: {reason(error)}")


def say_answers(found: Evaluation) -> None:
    """Prints the task's table of the metrics, the worst rows first, and the worst answer."""
    headers, rows = found.task.table(found.metrics)
    lines = console.table(rows[:_ROWS], headers, right=range(1, len(headers) - 1)) if rows else ""
    more = len(rows) - _ROWS
    for line in [*lines.splitlines(), *[f"... and {more:,} more, which are better"] * (more > 0)]:
        say("", line)
    order, total = found.task.mistakes(found.answers), f"{len(found.locations):,} answers"
    if not len(order):
        say("mistakes", f"none: all {total} of {found.split} are right")
        return
    file, *shown = [(n, cell(values[order[0]])) for n, values in found.predictions.items()][:4]
    are_all = len(order) == len(found.locations)
    what = f"the worst of {total}" if are_all else f"{len(order):,} of {total}, the most confident"
    say("mistakes", f"{what}: {file[1]} ({', '.join(map(' '.join, shown))})")
