"""Shows how a model answered a split: tables on the console, pictures and a table as files."""

import dataclasses
import functools
import html
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Task
from pipeline.data.splits import Split
from pipeline.report.tables import Columns, cell, html_table, numbers
from pipeline.utils import console, files
from pipeline.utils.console import say
from pipeline.utils.errors import reason

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PREDICTIONS = "predictions.csv"
_ROWS = 15  # of a table on the console


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation:
    """The answers to all examples of a split, and their metrics."""

    split: str
    task: Task
    """Calibrated, if the answers are to be."""
    metrics: dict[str, Any]
    columns: Mapping[str, np.ndarray]
    """From `evaluate.answers`, in the order of the examples."""
    examples: Split
    locate: Callable[[int], str]
    """Returns the name of an example by its id."""

    @functools.cached_property
    def answers(self) -> dict[str, np.ndarray]:
        """The columns with the answers of the calibrated task."""
        if "outputs" not in self.columns:
            return dict(self.columns)
        outputs, batch = tf.constant(self.columns["outputs"]), {"id": self.columns["id"]}
        answers = self.task.answer(outputs, batch).items()
        return {**self.columns, **{name: np.asarray(values) for name, values in answers}}

    @functools.cached_property
    def locations(self) -> list[str]:
        """The name of each example, without the home directory."""
        return files.collapse_home([self.locate(id) for id in self.columns["id"].tolist()])

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
