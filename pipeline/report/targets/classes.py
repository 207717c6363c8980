"""Report views of the target `classes`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.evaluation.targets.classes import FEW, no_better_than
from pipeline.report import confusion_matrix, panels
from pipeline.report.target_report import Panel, TargetReport
from pipeline.tasks.targets.classes import ClassTarget
from pipeline.utils import console
from pipeline.utils.intervals import wilson

_ROWS = 20  # classes in the table of `inspect`
_WORST = 15  # classes in the table of a test


class ClassReport(TargetReport):
    """Shows examples and predictions of `classes`."""

    target: ClassTarget

    def describe(
        self, columns: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Iterator[tuple[str, str]]:
        """Yields a line about the sizes of the classes, and a table of the first."""
        names = self.target.class_names
        counts = {
            split: np.bincount(part["label"], minlength=len(names))
            for split, part in columns.items()
        }
        train = counts["train"]
        test_split = "test" if "test" in counts else "train"
        test = counts[test_split]
        largest = int(train.argmax())
        share = test[largest] / max(test.sum(), 1)
        yield (
            "classes",
            f"{len(names):,}, with {train.min():,} to {train.max():,} examples in"
            f" train; always predicting {names[largest]!r} is right for {share:.1%} of"
            f" {test_split}",
        )
        rows = []
        for label, name in enumerate(names[:_ROWS]):
            rows.append([name, *(f"{sizes[label]:,}" for sizes in counts.values())])
        header = ["class", *counts]
        table = console.table(rows, header, right=range(1, len(header)))
        for line in table.splitlines():
            yield "", line
        if len(names) > _ROWS:
            yield "", f"... {len(names) - _ROWS:,} more"

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        """A table of the classes, the worst first, and notes about the accuracy."""
        lines = [*_class_table(metrics), *_notes(metrics, split)]
        if "coverage" in metrics:
            line = f"{'answered':10} {metrics['coverage']:.1%} of the examples, those"
            line += f" with a probability of at least {self.target.abstain_below:g}"
            if "selective_accuracy" in metrics:
                line += f"; {metrics['selective_accuracy']:.1%} of them are right"
            lines.append(line)
        return lines

    def pictures(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        figure = confusion_matrix.draw(metrics, self.target.class_names)
        return {"confusion_matrix.png": figure}

    def headline(self, metrics: Mapping[str, Any]) -> str:
        """The accuracy with its confidence interval."""
        count = metrics["examples"]
        accuracy = metrics["accuracy"]
        low, high = wilson(np.array(accuracy * count), np.array(count))
        right = round(accuracy * count)
        return (
            f"accuracy {accuracy:.1%} ({right:,} of {count:,}; 95% CI"
            f" {100 * low:.1f}-{high:.1%})"
        )

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        """The classes and what they are confused with, and whether the probabilities
        can be trusted.
        """
        yield panels.class_table(metrics.get("per_class", {}), "recall")
        if mistakes := _confusions(self.target.class_names, metrics):
            yield panels.confused_pairs(mistakes)
        yield Panel(
            "Confusion matrix", confusion_matrix.draw(metrics, self.target.class_names)
        )
        yield panels.reliability_diagram(columns)
        yield panels.coverage_curve(columns)

    def truth(self, example: Mapping[str, Any]) -> str:
        return self.target.class_names[int(example["label"])]

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Adds the prediction as the title: green if right, red if wrong."""
        predicted = int(prediction["class"])
        true = int(example["label"])
        probability = float(np.max(prediction["probabilities"]))
        title = (
            f"predicted {self.target.class_names[predicted][:22]} ({probability:.2f})"
        )
        color = "green"
        if predicted != true:
            title += f"\ntrue: {self.target.class_names[true][:22]}"
            color = "red"
        if probability < self.target.abstain_below:
            title = f"no prediction: {title}"
        axes.set_title(title, color=color, fontsize=9, parse_math=False)


def _class_table(metrics: Mapping[str, Any], limit: int = _WORST) -> list[str]:
    """Formats a row for each class with examples, the lowest F1 first.

    The last column is the class that is predicted most often instead, and how often.
    """
    scores = metrics.get("per_class", {})
    confused = _most_confused(list(scores), metrics)
    rows = []
    for name, score in scores.items():
        if score["examples"]:
            numbers = [f"{score[key]:.3f}" for key in ("f1", "precision", "recall")]
            count = f"{score['examples']:,}"
            rows.append([name[:30], count, *numbers, confused.get(name, "")])
    if not rows:
        return []
    rows.sort(key=lambda row: row[2])
    header = ["class", "examples", "f1", "precision", "recall"]
    header.append("most often confused with")
    lines = console.table(rows[:limit], header, right=range(1, 5)).splitlines()
    if len(rows) > limit:
        lines.append(f"... and {len(rows) - limit:,} more, which are better")
    return lines


def _most_confused(names: list[str], metrics: Mapping[str, Any]) -> dict[str, str]:
    """Maps a class to the class most often predicted instead, and how often."""
    confused = {}
    for true, predicted, count in reversed(_confusions(names, metrics)):
        confused[true] = f"{predicted[:30]} ({count:,})"
    return confused


def _confusions(
    names: list[str], metrics: Mapping[str, Any]
) -> list[tuple[str, str, int]]:
    """Mistakes as (true, predicted, examples), the most frequent first."""
    if "confusion_matrix" not in metrics:
        return [tuple(mistake) for mistake in metrics.get("confusions", ())]
    mistakes = []
    for true, row in zip(names, metrics["confusion_matrix"], strict=True):
        for predicted, count in zip(names, row, strict=True):
            if count and predicted != true:
                mistakes.append((true, predicted, count))
    return sorted(mistakes, key=lambda mistake: -mistake[2])


def _notes(metrics: Mapping[str, Any], split: str) -> Iterator[str]:
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
    if accuracy <= share < 1 and not no_better_than(metrics):
        yield (
            f"{'note':10} the accuracy is no better than always predicting"
            f" {sizes[largest]!r} ({share:.3f})"
        )
    if count < FEW:
        low, high = wilson(np.array(accuracy * count), np.array(count))
        examples = "examples" if split == "data" else f"{split} examples"
        yield (
            f"{'note':10} only {count} {examples}: the 95% confidence interval of the"
            f" accuracy is {low:.3f} to {high:.3f}"
        )
