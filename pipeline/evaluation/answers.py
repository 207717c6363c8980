"""The answers of a model to a split: metrics, a table of predictions, a summary."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.contracts import Task
from pipeline.data.splits import Split
from pipeline.utils import console
from pipeline.utils.columns import Columns


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation:
    """The answers to all examples of a split, and their metrics."""

    split: str
    task: Task
    metrics: dict[str, Any]
    answers: Mapping[str, np.ndarray]
    """From `evaluate.answers`, in the order of the examples."""
    examples: Split
    locate: Callable[[int], str]
    """Returns the name of an example by its id."""

    @functools.cached_property
    def predictions(self) -> Columns:
        """A table with the file, truth and prediction of each example."""
        file = [self.locate(id) for id in self.answers["id"].tolist()]
        columns = self._classes() or self._numbers()
        rows = {name: values.ravel().tolist() for name, values in columns.items()}
        return Columns(file=file, **rows)

    def _classes(self) -> dict[str, np.ndarray]:
        """The columns of a classification; empty for other tasks."""
        answers = self.answers
        if not {"probabilities", "class"} <= answers.keys():
            return {}
        names = np.array(self.task.metadata.get("class_names", ()))
        truth = answers["truth"]
        probabilities = answers["probabilities"]
        return {
            "truth": names[truth],
            "prediction": names[answers["class"]],
            "probability": probabilities.max(axis=1),
            "probability_of_truth": probabilities[np.arange(len(truth)), truth],
            "correct": truth == answers["class"],
        }

    def _numbers(self) -> dict[str, np.ndarray]:
        """The answers that are a single value for each example."""
        columns = {}
        for name, values in self.answers.items():
            is_number = values.size == len(values)
            if is_number and name not in ("id", "outputs"):
                columns[name] = values
        return columns

    @functools.cached_property
    def worst(self) -> tuple[np.ndarray, str]:
        """The positions of the worst predictions, and a sentence about them.

        These are the wrong predictions, the most confident first; for tasks without
        right and wrong, all predictions by their loss.
        """
        split = "" if self.split == "data" else f" {self.split}"
        count = f"{len(self.answers['id']):,}{split} predictions"
        if "correct" not in self.predictions:
            order = np.argsort(-self.answers["loss"], kind="stable")
            return order, f"the worst of {count}"
        wrong = np.flatnonzero(~np.array(self.predictions["correct"]))
        if not len(wrong):
            return wrong, f"all {count} are right"
        confidence = np.array(self.predictions["probability"])[wrong]
        order = wrong[np.argsort(-confidence, kind="stable")]
        return order, f"{len(wrong):,} of {count} are wrong"

    @property
    def text(self) -> str:
        """A table of the classes, the worst first, and sentences about mistakes."""
        order, sentence = self.worst
        if len(order):
            sentence += self._example(order[0])
        sentence = sentence.replace("\n", "\\n")
        lines = [*notes(self.metrics, self.split), f"{'mistakes':10} {sentence}"]
        return "\n".join([class_table(self.metrics), *lines]).lstrip("\n")

    def _example(self, position: int) -> str:
        """Describes a prediction, as the end of a sentence about the worst."""
        predictions = self.predictions
        if "correct" in predictions:
            row = {name: values[position] for name, values in predictions.items()}
            return (
                f"; the most confident: {row['file']}, {row['prediction']}"
                f" {row['probability']:.3f} instead of {row['truth']}"
            )
        cells = list(zip(predictions, predictions.rows()[position], strict=True))
        return f"; first {', '.join(f'{name} {text}' for name, text in cells[:4])}"

    def __repr__(self) -> str:
        numbers = console.numbers(self.metrics)
        lines = [f"{self.split:10} {numbers}  ({len(self.answers['id']):,} examples)"]
        if calibrated := self.metrics.get("calibrated"):
            lines.append(f"calibrated {console.numbers(calibrated)}  (as predicted)")
        return "\n".join([*lines, self.text])


def class_table(metrics: Mapping[str, Any], limit: int = 15) -> str:
    """Formats a row for each class with examples, the lowest F1 first.

    The last column is the class that is predicted most often instead, and how often.
    Returns an empty text for other tasks.
    """
    scores = metrics.get("per_class", {})
    if not scores:
        return ""
    confused = _most_confused(list(scores), metrics["confusion_matrix"])
    rows = []
    for name, score in scores.items():
        if score["examples"]:
            numbers = [f"{score[key]:.3f}" for key in ("f1", "precision", "recall")]
            count = f"{score['examples']:,}"
            rows.append([name[:30], count, *numbers, confused[name]])
    if not rows:
        return ""
    rows.sort(key=lambda row: row[2])
    header = ["class", "examples", "f1", "precision", "recall"]
    header.append("most often confused with")
    table = console.table(rows[:limit], header, right=range(1, 5))
    if len(rows) > limit:
        table += f"\n... and {len(rows) - limit:,} more, which are better"
    return table


def _most_confused(names: list[str], matrix: list[list[int]]) -> dict[str, str]:
    """Maps a class to the class most often predicted instead, and how often."""
    confused = {}
    for label, name in enumerate(names):
        wrong = list(matrix[label])
        wrong[label] = 0
        count = max(wrong)
        text = f"{names[wrong.index(count)][:30]} ({count:,})"
        confused[name] = text if count else ""
    return confused


def notes(metrics: Mapping[str, Any], split: str) -> Iterator[str]:
    """Yields notes about an accuracy that says little: of few examples, or no better
    than always predicting the largest class.
    """
    scores = metrics.get("per_class", {})
    if not scores:
        return
    sizes = {score["examples"]: name for name, score in scores.items()}
    largest = max(sizes)
    accuracy = metrics["accuracy"]
    count = metrics["examples"]
    share = largest / count
    if accuracy <= share < 1:
        yield (
            f"{'note':10} no better than always predicting {sizes[largest]!r}"
            f" ({share:.3f})"
        )
    if count < 50:
        error = max(2 * math.sqrt(accuracy * (1 - accuracy) / count), 1 / count)
        examples = "examples" if split == "data" else f"{split} examples"
        yield (
            f"{'note':10} only {count} {examples}: the accuracy is uncertain by"
            f" +-{error:.2f}"
        )
