"""Shows how a model answered a split: tables on the console, pictures and a table as files."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.contracts import Task
from pipeline.data.splits import Split
from pipeline.report.tables import Columns, class_table, notes
from pipeline.utils import console, files
from pipeline.utils.console import say
from pipeline.utils.errors import plain, reason

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
        """A row for each example: its file (without the home directory), truth, prediction."""
        answers, names = self.answers, np.array(self.task.metadata.get("class_names", ()))
        left_out = ("id", "outputs")
        columns = {n: v for n, v in answers.items() if v.size == len(v) and n not in left_out}
        if {"probabilities", "class"} <= answers.keys():
            truth, sure = answers["truth"], answers["probabilities"]
            columns = {
                "truth": names[truth],
                "prediction": names[answers["class"]],
                "probability": sure.max(axis=1),
                "probability_of_truth": sure[np.arange(len(truth)), truth],
                "correct": truth == answers["class"],
            }
        found = files.collapse_home([self.locate(id) for id in answers["id"].tolist()])
        return Columns(file=found, **{n: v.ravel().tolist() for n, v in columns.items()})

    @functools.cached_property
    def worst(self) -> tuple[np.ndarray, str]:
        """Positions of the wrong predictions, the most confident first; if none is plainly wrong,
        of all by their loss. And a sentence about them."""
        count = f"{len(self.answers['id']):,} {self.split} predictions".replace(" data ", " ")
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

    @property
    def text(self) -> str:
        """A table of the classes, the worst first, and sentences about it and the mistakes."""
        order, sentence = self.worst
        if len(order) and "correct" in self.predictions:
            worst = {name: values[order[0]] for name, values in self.predictions.items()}
            about = "{file}, {prediction} {probability:.3f} instead of {truth}".format(**worst)
            sentence += f"; the most confident: {about}"
        elif len(order):
            row = zip(self.predictions, self.predictions.rows()[order[0]], strict=True)
            sentence += f"; first {', '.join(map(' '.join, list(row)[:4]))}"
        sentence = sentence.replace("\n", "\\n")
        lines = [*notes(self.metrics, self.split), f"{'mistakes':10} {sentence}"]
        return "\n".join([class_table(self.metrics), *lines]).lstrip("\n")

    def __repr__(self) -> str:
        count, calibrated = len(self.answers["id"]), self.metrics.get("calibrated")
        text = f"{self.split:10} {console.numbers(self.metrics)}  ({count:,} examples)\n"
        if calibrated:
            text += f"calibrated {console.numbers(calibrated)}  (as predicted)\n"
        return text + self.text


def show(
    found: Evaluation, folder: Path, history: Mapping[str, list[float]] | None = None
) -> list[str]:
    """Prints the text; writes `predictions.csv` and pictures into a directory; returns their names.

    Never fails, because the model is still to be exported: a note says what cannot be written.
    Without a history, there are no curves, and the metrics are printed, too.
    """
    written = []
    with _noted("predictions.csv"):
        print(plain(repr(found) if history is None else found.text), flush=True)
        files.write_bytes(folder / "predictions.csv", found.predictions.csv())
        written.append("predictions.csv")
    with _noted("pictures"):
        from pipeline.report import pictures  # fails if matplotlib is badly configured

        for name, draw in pictures.drawings(found, history):
            with _noted(name):
                files.write_bytes(folder / name, pictures.png(draw()))
                written.append(name)
    return written


@contextlib.contextmanager
def _noted(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # such as a task of the user's own, or a full disk
        say("note", f"{what} could not be written: {reason(error)}")
