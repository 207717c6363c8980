"""The predictions of a model on a split: metrics and a table of predictions."""

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
from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.training.train_step import forward
from pipeline.utils.columns import Columns
from pipeline.utils.errors import UsageError

_CHUNK = 4096  # rows of a file that are formatted at once
_MAX_SECONDS = 5.0  # that their importance may take


@dataclasses.dataclass(frozen=True, repr=False)
class EvaluatedSplit:
    """The predictions for all examples of a split, and their metrics."""

    split: str
    task: Task
    metrics: dict[str, Any]
    table: Mapping[str, np.ndarray]
    """`id` and the columns of `TargetEvaluation.table`, in the order of examples."""
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
        columns = evaluation_of(self.task.target).readable(selected)
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
        return evaluation_of(self.task.target).tables(self.table)

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


def no_skill_warning(no_better_than: str | None) -> str:
    """A sentence about a model that has learned nothing, from the result of
    `TargetEvaluation.no_better_than`; empty if it has.
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
