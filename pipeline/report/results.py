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
from pipeline.report.tables import Columns, cell, class_table, html_table, numbers
from pipeline.utils import console, files
from pipeline.utils.console import say
from pipeline.utils.errors import reason

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    def names(self) -> list[str]:
        """The file or other name of each example, without the home directory."""
        return files.collapse_home([self.locate(id) for id in self.columns["id"].tolist()])

    @functools.cached_property
    def predictions(self) -> Columns:
        """A row for each example: its file, truth and answer."""
        return Columns(file=self.names, **self.task.predictions(self.answers))

    @functools.cached_property
    def worst(self) -> tuple[np.ndarray, str]:
        """Positions of the wrong answers, the most confident first; if no answer is plainly wrong,
        of all by their loss. And a sentence about them."""
        count = f"{len(self.columns['id']):,} answers of {self.split}"
        if "correct" not in self.predictions:
            return np.argsort(-self.columns["loss"], kind="stable"), f"the worst of {count}"
        wrong = np.flatnonzero(~self.predictions["correct"])
        order = wrong[np.argsort(-self.predictions["probability"][wrong], kind="stable")]
        right = f"none: all {count} are right"
        return order, f"{len(wrong):,} of {count} are wrong" if len(wrong) else right

    def mistakes(self) -> "Figure":
        """A figure of the worst answers."""
        from pipeline.report import pictures

        return pictures.mistakes(self)

    def __repr__(self) -> str:
        return f"Evaluation({self.split}: {numbers(self.metrics)})"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{html_table(*class_table(self.metrics))}"


def show(
    found: Evaluation, folder: Path, history: Mapping[str, list[float]] | None, quiet: bool = False
) -> None:
    """Prints tables unless `quiet`; writes pictures and `predictions.csv` into a directory.

    Never fails, because the model is still to be exported: a note says what cannot be shown.
    `history` maps metrics to their values per epoch; without it, there are no curves.
    """
    try:
        if not quiet:
            _say(found)
        files.write_bytes(folder / "predictions.csv", found.predictions.csv())
    except Exception as error:  # such as a task of the user's own that does not expect this
        say("note", f"predictions.csv could not be written: {reason(error)}")
    try:
        from pipeline.report import pictures  # fails if matplotlib is badly configured

        pictures.write(found, folder, history)
    except Exception as error:
        say("note", f"pictures could not be drawn: {reason(error)}")


def _say(found: Evaluation) -> None:
    headers, rows = class_table(found.metrics)
    lines = console.table(rows[:_ROWS], headers, right=range(1, 5)).splitlines() if rows else []
    if len(rows) > _ROWS:
        lines.append(f"... and {len(rows) - _ROWS:,} more, which are better")
    for line in lines:
        say("", line)
    order, text = found.worst
    if len(order):
        file, *more = [(n, cell(values[order[0]])) for n, values in found.predictions.items()][:4]
        text += f"; first {file[1]} ({', '.join(map(' '.join, more))})"
    say("mistakes", text)
