"""Permutation importance: how much worse predictions become if a column is shuffled.

Breiman, "Random forests", Machine Learning 45, 2001, section 10; Fisher, Rudin and
Dominici, "All models are wrong, but many are useful", JMLR 20, 2019.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, LearnedColumn, Task
from pipeline.data.image_sizes import spread
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.training.train_step import SteppedModel, forward

_MAX_EXAMPLES = 2000
_MIN_BATCH, _MAX_BATCH = 64, 1024
_BATCH_BYTES = 32 << 20  # of decoded examples, which may have images
_MAX_SHUFFLES = 200  # of all columns together, unless _MIN_REPEATS are more
_MIN_REPEATS = 2  # of the shuffle of a column
_MAX_REPEATS = 5


class Importance(NamedTuple):
    """How much worse the metric becomes if a column is shuffled."""

    name: str
    mean: float
    """Over the shuffles; negative if the metric becomes better."""
    deviation: float
    """The standard deviation over the shuffles."""


@dataclasses.dataclass(frozen=True)
class Importances:
    """The importance of all columns for a metric."""

    metric: str
    """The metric by which models are compared."""
    examples: int
    """How many examples were measured."""
    repeats: int
    """How often each column was shuffled."""
    intact: float
    """The metric without a shuffled column."""
    columns: list[Importance]
    """The most important first."""


def measure(
    model: SteppedModel,
    task: Task,
    split: Split,
    max_seconds: float = float("inf"),
) -> Importances | None:
    """Measures the importance of each column on at most 2,000 examples of a split.

    A column is shuffled as a whole, such as a number with its gaps. There are as many
    examples as `max_seconds` allow, estimated from the time for the first batch. None
    if not even a batch is possible, the task has no columns, or the metric is
    undefined.
    """
    columns = task.input.learned_columns()
    if not columns:
        return None
    repeats = min(_MAX_REPEATS, _MAX_SHUFFLES // len(columns))
    repeats = max(_MIN_REPEATS, repeats)
    size = _batch_size(split)
    metric = _metric_function(model, task, size)
    batch = split.take(spread(len(split), size))
    metric(batch)  # traces the network
    start = time.monotonic()
    metric(batch)
    seconds = (time.monotonic() - start) * repeats * len(columns)
    affordable = len(batch["id"]) * min(max_seconds / seconds, _MAX_EXAMPLES)
    if affordable < len(batch["id"]):
        return None
    positions = spread(len(split), min(int(affordable), _MAX_EXAMPLES))
    examples = split.take(positions)
    intact = metric(examples)
    if intact is None:
        return None
    _, direction = task.target.selection_metric
    random = np.random.default_rng(0)
    orders = [random.permutation(len(positions)) for _ in range(repeats)]
    importances = []
    for column in columns:
        worse = []
        for order in orders:
            shuffled = metric(_shuffle(examples, column, order))
            if shuffled is None:
                return None
            worse.append(direction * (intact - shuffled))
        mean = float(np.mean(worse))
        importances.append(Importance(column.name, mean, float(np.std(worse))))
    importances.sort(key=lambda importance: -importance.mean)
    name, _ = task.target.selection_metric
    return Importances(name, len(positions), repeats, intact, importances)


def _shuffle(
    examples: Mapping[str, np.ndarray], column: LearnedColumn, order: np.ndarray
) -> dict[str, np.ndarray]:
    """Examples in which the values of a column are in another order."""
    shuffled = dict(examples)
    for field, position in column.fields.items():
        values = examples[field].copy()
        values[:, position] = values[order, position]
        shuffled[field] = values
    return shuffled


def _batch_size(split: Split) -> int:
    """The examples of a batch, which has at most 32 MB if they are large."""
    example = split.take(np.arange(1))
    row_bytes = sum(values.nbytes for values in example.values())
    return min(_MAX_BATCH, max(_MIN_BATCH, _BATCH_BYTES // row_bytes))


def _metric_function(
    model: SteppedModel, task: Task, size: int
) -> Callable[[Mapping[str, np.ndarray]], float | None]:
    """A function from decoded examples to the metric by which models are compared, None
    if it is undefined.
    """
    loss = evaluate.loss_function(model, task)
    name, _ = task.target.selection_metric

    @tf.function(reduce_retracing=True)
    def predict(batch: Example) -> tuple[Any, tf.Tensor]:
        y, outputs, _ = forward(task, model, batch)
        if loss is None:
            return outputs, tf.fill(tf.shape(batch["id"]), np.float32(np.nan))
        return outputs, loss(y, outputs)

    def metric(examples: Mapping[str, np.ndarray]) -> float | None:
        evaluator = evaluation_of(task.target).evaluator(model)
        for start in range(0, len(examples["id"]), size):
            rows = {key: v[start : start + size] for key, v in examples.items()}
            batch = evaluate.batch_of(rows)
            outputs, losses = predict(batch)
            outputs = task.target_outputs(outputs)
            predictions = {**task.target.predict(outputs, batch), "loss": losses}
            evaluator.update(outputs, predictions, batch)
        value = evaluator.result().get(name)
        return None if value is None or not np.isfinite(value) else float(value)

    return metric
