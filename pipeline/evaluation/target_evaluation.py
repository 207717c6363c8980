"""How the predictions of a target are evaluated: metrics, calibration, their table.

A target from `tasks/targets/NAME.py` has its evaluation in `targets/NAME.py`; a user's
target names its own in the attribute `evaluation`, or is evaluated as here.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from pipeline.config import registry
from pipeline.contracts import Example, Metadata, Target
from pipeline.utils.columns import Columns


@dataclasses.dataclass(frozen=True)
class Score:
    """A metric that is a mean over examples, or a ratio of two sums over them."""

    values: np.ndarray
    """What each example adds to the numerator, float64 (examples,)."""
    weights: np.ndarray
    """What each example adds to the denominator, float64 (examples,)."""
    direction: Literal[1, -1]
    """1 if higher is better, or -1 if lower is better."""

    @classmethod
    def mean(cls, values: Any, direction: Literal[1, -1]) -> "Score":
        """The mean of a number of each example, which may be written as text."""
        values = np.asarray(values, np.float64)
        return cls(values, np.ones_like(values), direction)


class Evaluator(abc.ABC):
    """Computes the metrics of a split from one batch after the other."""

    reads_training = False
    """Whether `update_training` is to be called, which reads the training examples."""

    @abc.abstractmethod
    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        """Adds a batch, without padding.

        `predictions` are those of `Target.predict` and `loss`, float32 (batch,);
        `batch` has the decoded fields. All are tensors. Of an export, `outputs` is None
        and `loss` NaN if `Target.outputs_of` cannot recover them.
        """

    @abc.abstractmethod
    def result(self) -> dict[str, Any]:
        """The metrics of all examples so far, as JSON values; with `examples`, their
        number, and `loss`, their mean loss, which is left out if it is not known.
        """

    def update_training(self, batch: Example) -> None:
        """Adds a decoded batch of training examples, without padding, with which
        predictions are compared; called after `update`, if they are available.
        """
        return None

    def pictures(self) -> dict[str, np.ndarray]:
        """Name -> picture of predictions, uint8 (height, width, 3), after `result`."""
        return {}


class KerasEvaluator(Evaluator):
    """The mean loss, and the metrics of the target as during training."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._metrics = target.metrics()
        self._count = 0
        self._loss = 0.0

    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        losses = predictions["loss"].numpy().astype(np.float64)
        self._count += len(losses)
        self._loss += float(losses.sum())
        if outputs is None:
            self._metrics = []
        for metric in self._metrics:
            metric.update_state(self._target.y(batch), outputs)

    def result(self) -> dict[str, Any]:
        values = {metric.name: float(metric.result()) for metric in self._metrics}
        return {"examples": self._count, "loss": self._loss / self._count, **values}


class Calibrator(abc.ABC):
    """Fits metadata that calibrates predictions, from one batch after the other."""

    @abc.abstractmethod
    def update(self, outputs: Any, batch: Example) -> None:
        """Adds a batch of held-out examples, without padding."""

    @abc.abstractmethod
    def result(self) -> Metadata:
        """The metadata, such as a temperature."""


class TargetEvaluation:
    """How the predictions of a target are evaluated; by default, by its Keras metrics.

    A subclass is created with the target, which is its attribute `target`.
    """

    def __init__(self, target: Any) -> None:
        self.target = target

    def evaluator(self, model: Callable[..., Any] | None = None) -> Evaluator:
        """Computes the metrics of a split; it may ask the model for samples."""
        return KerasEvaluator(self.target)

    def calibrator(self, model: Callable[..., Any] | None = None) -> Calibrator | None:
        """Fits a calibration of the predictions on held-out examples; it may ask the
        model for samples. None: nothing is calibrated.
        """
        return None

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """The columns of `predictions.csv` for a batch, (batch,), as compact numbers.

        `predictions` are those of `predict` and `loss`. With a column `correct`, which
        needs `probability`, wrong predictions are shown first, the most probable ones
        before others; otherwise, those with the highest loss.
        """
        columns = {}
        for name, values in predictions.items():
            if values.shape.rank == 1:
                columns[name] = values.numpy()
        return columns

    def readable(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Replaces numbers in the columns of `table` by names for people; by default,
        decodes texts.
        """
        shown = {}
        for name, values in columns.items():
            if values.dtype == object:
                texts = [v.decode() if isinstance(v, bytes) else v for v in values]
                values = np.array(texts, object)
            shown[name] = values
        return shown

    def tables(self, columns: Mapping[str, np.ndarray]) -> dict[str, Columns]:
        """File name -> further tables, from all rows of `table`."""
        return {}

    def scores(self, rows: Mapping[str, np.ndarray]) -> dict[str, Score]:
        """Metrics by which models are compared on the same examples, the most important
        first.

        `rows` are the columns of `readable` as texts, as `predictions.csv` has them.
        """
        scores = {}
        if "correct" in rows:
            scores["accuracy"] = Score.mean(rows["correct"] == "True", 1)
        if "loss" in rows:
            scores["loss"] = Score.mean(rows["loss"], -1)
        return scores

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        """What is as good without having learned anything, in words, such as "always
        predicting the mean"; empty if the predictions are better than that.
        """
        return ""

    def explained_output(self, outputs: Any) -> tf.Tensor | None:
        """The output value of each example that is attributed to the input, float32
        (batch,), such as the logit of the prediction; None: there is none.
        """
        return None


def evaluation_of(target: Target) -> TargetEvaluation:
    """The evaluation of a target."""
    return registry.counterpart(target, "evaluation/targets", TargetEvaluation)
