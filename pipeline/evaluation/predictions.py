"""The predictions of a model on a split: metrics, a table of predictions, a summary."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from pipeline.contracts import Task
from pipeline.data.splits import Split
from pipeline.evaluation import importance
from pipeline.evaluation.evaluate import batch_of
from pipeline.evaluation.importance import Importances
from pipeline.training.train_step import forward
from pipeline.utils import console
from pipeline.utils.columns import Columns
from pipeline.utils.errors import UsageError

_CHUNK = 4096  # rows of a file that are formatted at once
_COLUMNS = 6  # of a table, whose importance is printed
_MAX_SECONDS = 5.0  # that their importance may take


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation:
    """The predictions for all examples of a split, and their metrics."""

    split: str
    task: Task
    metrics: dict[str, Any]
    table: Mapping[str, np.ndarray]
    """`id` and the columns of `Target.table`, in the order of the examples."""
    examples: Split
    locate: Callable[[int], str]
    """Returns the name of an example by its id."""
    predict: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
    """Returns the predictions for a few decoded examples."""
    network: Any = None
    """The network, if it is available."""
    pictures: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Name -> picture of the predictions, uint8 (height, width, 3)."""
    has_loss: bool = True
    """Whether the loss is known; if not, `metrics` and `table` are without it."""
    training_examples: int = 0
    """How many of the examples the model was trained on, as far as it is known."""

    def __len__(self) -> int:
        return len(self.table["id"])

    @property
    def place(self) -> str:
        """Such as "test split"; "data" if it is not divided."""
        return "data" if self.split == "data" else f"{self.split} split"

    @functools.cached_property
    def predictions(self) -> Columns:
        """A table with the file, truth and prediction of each example."""
        return self.rows(np.arange(len(self)))

    def rows(self, positions: np.ndarray) -> Columns:
        """The rows at these positions of the table, for people."""
        selected = {name: column[positions] for name, column in self.table.items()}
        ids = selected.pop("id").tolist()
        columns = self.task.target.readable(selected)
        values = {name: column.tolist() for name, column in columns.items()}
        return Columns(file=[self.locate(id) for id in ids], **values)

    def csv(self) -> Iterator[bytes]:
        """Yields the content of `predictions.csv` in pieces."""
        for start in range(0, len(self), _CHUNK):
            end = min(start + _CHUNK, len(self))
            content = self.rows(np.arange(start, end)).csv()
            yield content if start == 0 else content.partition(b"\n")[2]

    def tables(self) -> dict[str, Columns]:
        """File name -> further tables of the task."""
        return self.task.target.tables(self.table)

    def predict_rows(self, positions: np.ndarray) -> tuple[dict[str, np.ndarray], Any]:
        """The decoded examples at these positions, and the predictions for them."""
        examples = self.examples.take(positions)
        return examples, self.predict(examples)

    def raw(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """The raw examples at these positions; empty if their source is gone."""
        if self.examples.raw_split is None:
            return {}
        try:
            return self.examples.raw(positions)
        except UsageError:  # the files are gone
            return {}

    @functools.cached_property
    def importances(self) -> Importances | None:
        """How much worse the predictions become if a column is shuffled; None if the
        input has no columns, the network is not available, or it would take too long.
        """
        if self.network is None:
            return None
        return importance.measure(self.network, self.task, self.examples, _MAX_SECONDS)

    @functools.cached_property
    def worst(self) -> tuple[np.ndarray, str]:
        """The positions of the worst predictions, and a sentence about them.

        These are the wrong predictions, the most confident first; for tasks without
        right and wrong, all predictions by their loss.
        """
        split = "" if self.split == "data" else f" {self.split}"
        count = f"{len(self):,}{split} predictions"
        if "correct" not in self.table:
            if "loss" not in self.table:
                return np.arange(len(self)), f"the first of {count}"
            order = np.argsort(-self.table["loss"], kind="stable")
            return order, f"the worst of {count}"
        wrong = np.flatnonzero(~self.table["correct"])
        if not len(wrong):
            return wrong, f"all {count} are right"
        confidence = self.table["probability"][wrong]
        order = wrong[np.argsort(-confidence, kind="stable")]
        return order, f"{len(wrong):,} of {count} are wrong"

    @functools.cached_property
    def least_certain(self) -> np.ndarray:
        """The positions of all predictions, the least probable first; empty if the
        predictions have no probabilities.
        """
        if "probability" not in self.table:
            return np.empty(0, np.int64)
        return np.argsort(self.table["probability"], kind="stable")

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
        return no_skill_warning(self.task.target.no_better_than(self.metrics))

    @property
    def _summary(self) -> list[str]:
        """The lines of the task, and notes about training examples and the loss."""
        lines = self.task.target.summary(self.metrics, self.split)
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


def no_skill_warning(no_better_than: str | None) -> str:
    """A sentence about a model that has learned nothing, from the result of
    `Task.no_better_than`; empty if it has.
    """
    if not no_better_than:
        return ""
    return f"the model is no better than {no_better_than}: do not use it"


def prediction_function(
    model: Any, task: Task
) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """A function from decoded examples to the predictions of a network."""

    def predict(examples: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch = batch_of(examples)
        _, outputs, _ = forward(task, model, batch)
        predictions = task.target.predict(task.target_outputs(outputs), batch)
        return {name: np.asarray(values) for name, values in predictions.items()}

    return predict
