"""How much worse predictions become if examples are corrupted.

Method: Hendrycks and Dietterich, "Benchmarking neural network robustness to common
corruptions and perturbations", ICLR 2019.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping

import numpy as np

from pipeline.config.sections import TrainConfig
from pipeline.data import batching
from pipeline.data.example_store import MemoryStore
from pipeline.data.image_sizes import spread
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.evaluation.predictions import Evaluation

STRENGTHS = (1, 2, 3)
_EXAMPLES = 1000  # at most


@dataclasses.dataclass(frozen=True)
class Robustness:
    """A metric of corrupted examples."""

    metric: str
    """The metric by which models are compared."""
    examples: int
    """How many examples were measured."""
    clean: float
    corrupted: Mapping[str, list[float]]
    """Name of a corruption -> the metric at each of `STRENGTHS`."""


def measure(
    evaluation: Evaluation, options: TrainConfig, most_seconds: float = float("inf")
) -> Robustness | None:
    """Measures the model on corrupted examples of a split, at most 1,000.

    None if this would take longer than `most_seconds`, going by the time for the clean
    examples.
    """
    if most_seconds <= 0:
        return None
    corruptions = evaluation.task.input.corruptions()
    positions = spread(len(evaluation), _EXAMPLES)
    columns = evaluation.examples.take(positions)
    metric = _metric_function(evaluation, options)
    metric(columns)  # traces the network
    start = time.monotonic()
    clean = metric(columns)
    rounds = len(corruptions) * len(STRENGTHS)
    if (time.monotonic() - start) * rounds > most_seconds:
        return None
    corrupted = {}
    for name, corrupt in corruptions.items():
        values = []
        for strength in STRENGTHS:
            values.append(metric(corrupt(columns, strength)))
        corrupted[name] = values
    name, _ = evaluation.task.target.selection_metric
    return Robustness(name, len(positions), clean, corrupted)


def _metric_function(
    evaluation: Evaluation, options: TrainConfig
) -> Callable[[Mapping[str, np.ndarray]], float]:
    """A function from decoded examples to the metric by which models are compared."""
    name, _ = evaluation.task.target.selection_metric

    def metric(columns: Mapping[str, np.ndarray]) -> float:
        rows = np.arange(len(columns["id"]))
        batches = batching.evaluation(Split(MemoryStore(columns), rows), options)
        result = evaluate.evaluate(evaluation.network, evaluation.task, batches)
        return result.metrics[name]

    return metric
