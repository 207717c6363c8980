"""The evaluation of a split for people: its numbers, notes and mistakes in lines."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from pipeline.evaluation.predictions import EvaluatedSplit, no_skill_warning
from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.report.target_report import report_of
from pipeline.utils import console

_COLUMNS = 6  # of a table, whose importance is printed


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation(EvaluatedSplit):
    """An evaluated split that prints as its numbers, notes and mistakes."""

    @classmethod
    def of(cls, split: EvaluatedSplit) -> "Evaluation":
        """The same evaluation, with its lines."""
        fields = dataclasses.fields(split)
        return cls(**{field.name: getattr(split, field.name) for field in fields})

    @property
    def numbers(self) -> dict[str, str]:
        """The metrics as text, for the split and, if calibrated, under `calibrated`."""
        count = f"{len(self):,} examples"
        calibrated = self.metrics.get("calibrated")
        if calibrated and calibrated.get("loss") == self.metrics.get("loss"):
            calibrated = None  # the temperature is 1
        if calibrated:
            count += ", before calibration"
        lines = {self.split: f"{console.numbers(self.metrics)}  ({count})"}
        if calibrated:
            lines["calibrated"] = f"{console.numbers(calibrated)}  (as predicted)"
        return lines

    @property
    def notes(self) -> list[str]:
        """What the task's summary warns of, such as few examples."""
        lines = self._summary
        return [line[5:].strip() for line in lines if line.startswith("note ")]

    @property
    def warning(self) -> str:
        """A sentence about a model that has learned nothing; empty if it has."""
        return no_skill_warning(
            evaluation_of(self.task.target).no_better_than(self.metrics)
        )

    @property
    def _summary(self) -> list[str]:
        """The lines of the task, and notes about training examples and the loss."""
        lines = report_of(self.task.target).summary(self.metrics, self.split)
        if self.training_examples:
            lines.append(
                f"{'note':10} the model was trained on {self.training_examples:,} of"
                f" these {len(self):,} examples: it is usually worse on new ones"
            )
        if not self.has_loss:
            lines.append(
                f"{'note':10} no loss: it cannot be computed from the predictions alone"
            )
        return lines

    @property
    def text(self) -> str:
        """The summary of the task, and sentences about mistakes."""
        order, sentence = self.worst
        if len(order):
            sentence += self._example(order[:1])
        sentence = sentence.replace("\n", "\\n")
        mistakes = f"{'mistakes':10} {sentence}"
        return "\n".join([*self._summary, mistakes, *self._important_columns()])

    def _important_columns(self) -> Iterator[str]:
        """A line about the columns that matter most for the predictions."""
        importances = self.importances
        if importances is None:
            return
        shown = importances.columns[:_COLUMNS]
        parts = []
        for column in shown:
            name = " ".join(column.name.split())  # the line must stay one
            parts.append(f"{name} {column.mean:.3f}")
        if len(importances.columns) > len(shown):
            parts.append("...")
        yield (
            f"{'importance':10} {', '.join(parts)}"
            f" (how much worse the {importances.metric} is if the column is shuffled)"
        )

    def _example(self, position: np.ndarray) -> str:
        """Describes a prediction, as the end of a sentence about the worst."""
        rows = self.rows(position)
        if "correct" in rows:
            row = {name: values[0] for name, values in rows.items()}
            return (
                f"; the most confident: {row['file']}, {row['prediction'] or 'nothing'}"
                f" ({row['probability']:.3f}) instead of {row['truth']}"
            )
        texts = dict(zip(rows, rows.rows()[0], strict=True))
        sides = []
        for side in ("prediction", "truth"):
            values = [text for name, text in texts.items() if name.startswith(side)]
            sides.append(" and ".join(values[:3]) or "none")
        if "truth" in rows or "truth_0" in rows:
            return f": {texts['file']}, {sides[0]} instead of {sides[1]}"
        cells = [f"{name} {text}" for name, text in texts.items() if name != "file"]
        return f": {texts['file']}, {', '.join(cells[:3])}"

    def __repr__(self) -> str:
        lines = [f"{name:10} {text}" for name, text in self.numbers.items()]
        lines.append(self.text)
        if self.warning:
            lines.append(f"{'warning':10} {self.warning}")
        return "\n".join(lines)
