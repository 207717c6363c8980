"""Shows how a model answered a split: tables on the console, pictures and a table as files."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.contracts import Task
from pipeline.data.splits import Split
from pipeline.report.tables import Columns, class_table
from pipeline.utils import console, files
from pipeline.utils.console import say
from pipeline.utils.errors import reason

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation:
    """The answers to all examples of a split, and their metrics."""

    split: str
    task: Task
    metrics: dict[str, Any]
    answers: Mapping[str, np.ndarray]
    """From `evaluate.answers`, in the order of the examples; calibrated, if the task is."""
    examples: Split
    locate: Callable[[int], str]
    """Returns the name of an example by its id."""

    @functools.cached_property
    def predictions(self) -> Columns:
        """A row for each example: its file (without the home directory), truth and answer."""
        names = [self.locate(id) for id in self.answers["id"].tolist()]
        columns = self.task.predictions(self.answers).items()
        return Columns(file=files.collapse_home(names), **{n: v.tolist() for n, v in columns})

    @functools.cached_property
    def worst(self) -> tuple[np.ndarray, str]:
        """Positions of the wrong answers, the most confident first; if no answer is plainly wrong,
        of all by their loss. And a sentence about them."""
        count = f"{len(self.answers['id']):,} answers of {self.split}"
        if "correct" not in self.predictions:
            return np.argsort(-self.answers["loss"], kind="stable"), f"the worst of {count}"
        wrong = np.flatnonzero(~np.array(self.predictions["correct"]))
        sure = np.array(self.predictions["probability"])[wrong]
        text = f"{len(wrong):,} of {count} are wrong" if len(wrong) else f"all {count} are right"
        return wrong[np.argsort(-sure, kind="stable")], text

    def mistakes(self) -> "Figure":
        """A figure of the worst answers."""
        from pipeline.report import pictures

        return pictures.mistakes(self)

    def __repr__(self) -> str:
        return f"{self.split}: {console.numbers(self.metrics)}\n{class_table(self.metrics)}"


def show(
    found: Evaluation,
    folder: Path,
    history: Mapping[str, list[float]] | None = None,
    quiet: bool = False,
) -> None:
    """Prints tables unless `quiet`; writes pictures and `predictions.csv` into a directory.

    Never fails, because the model is still to be exported: a note says what cannot be shown.
    `history` maps metrics to their values per epoch; without it, there are no curves.
    """

    def say_tables() -> None:
        if text := class_table(found.metrics):
            say("", f"\n{text}")
        order, text = found.worst
        if len(order):
            file, *cells = zip(found.predictions, found.predictions.rows()[order[0]], strict=True)
            shown = ", ".join(f"{name} {cell}" for name, cell in cells[:3])
            text += f"; first {file[1]} ({shown})"
        say("mistakes", text)

    def write_pictures() -> None:
        from pipeline.report import pictures  # fails if matplotlib is badly configured

        for name, figure in pictures.drawn(found, history):
            files.write_bytes(folder / name, pictures.png(figure))

    def write_predictions() -> None:
        files.write_bytes(folder / "predictions.csv", found.predictions.csv())

    for part in (write_predictions, write_pictures, *[say_tables] * (not quiet)):
        try:
            part()
        except Exception as error:  # such as a task of the user's own, or a full disk
            say("note", f"not all could be shown, in {part.__name__}: {reason(error)}")
