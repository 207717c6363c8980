"""Evaluation of the target `number`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example
from pipeline.evaluation.target_evaluation import Evaluator, Score, TargetEvaluation
from pipeline.tasks.targets.number import NumberTarget

_FEW = 20  # examples, of which an error says little


class NumberEvaluation(TargetEvaluation):
    """Evaluates predictions of `number`."""

    target: NumberTarget

    def evaluator(self, model: Any = None) -> Evaluator:
        return NumberEvaluator()

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """`truth` and `prediction`, with a number if there are several, and `loss`."""
        count = len(predictions["loss"])
        truth = batch["target"].numpy().reshape(count, -1)
        prediction = predictions["prediction"].numpy().reshape(count, -1)
        columns = {}
        for index, ending in enumerate(self.target.column_endings()):
            columns[f"prediction{ending}"] = prediction[:, index]
            columns[f"truth{ending}"] = truth[:, index]
        return {**columns, "loss": predictions["loss"].numpy()}

    def scores(self, rows: Mapping[str, np.ndarray]) -> dict[str, Score]:
        """The mean absolute error of the numbers, and the loss."""
        errors = []
        for ending in self.target.column_endings():
            prediction = rows[f"prediction{ending}"].astype(np.float64)
            errors.append(
                np.abs(prediction - rows[f"truth{ending}"].astype(np.float64))
            )
        error = Score.mean(np.mean(errors, axis=0), -1)
        return {"mean_absolute_error": error, **super().scores(rows)}

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        """The mean, unless the mean squared error of one of the numbers is smaller by
        two standard errors; fewer than 20 examples are not judged.
        """
        if metrics["r2"] is None or metrics["examples"] < _FEW:
            return ""
        reductions = metrics["mse_reduction"]["mean"]
        errors = metrics["mse_reduction"]["standard_error"]
        for reduction, error in zip(reductions, errors, strict=True):
            if reduction > 2 * error:
                return ""
        return "always predicting the mean"

    def explained_output(self, outputs: Any) -> tf.Tensor:
        """The first number."""
        return outputs[:, 0]


class NumberEvaluator(Evaluator):
    """Loss, mean squared, root mean squared and mean absolute error, and r2.

    `r2` is the fraction of the target's variance that is explained, 1 - mse / variance:
    at most 1, negative for a model worse than the mean of these targets, None if they
    are all equal; of several numbers, the mean over those that differ, and
    `per_number` has the errors of each.
    """

    def __init__(self) -> None:
        self._loss = 0.0
        self._true: list[np.ndarray] = []
        self._predicted: list[np.ndarray] = []

    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        self._loss += float(predictions["loss"].numpy().astype(np.float64).sum())
        count = len(predictions["prediction"])
        self._true.append(batch["target"].numpy().reshape(count, -1))
        self._predicted.append(predictions["prediction"].numpy().reshape(count, -1))

    def result(self) -> dict[str, Any]:
        truth = np.concatenate(self._true).astype(np.float64)
        predicted = np.concatenate(self._predicted).astype(np.float64)
        squared = ((predicted - truth) ** 2).mean(axis=0)
        absolute = np.abs(predicted - truth).mean(axis=0)
        varies = np.ptp(truth, axis=0) > 0
        variance = np.where(varies, truth.var(axis=0), 1.0)
        explained = 1 - squared / variance
        reductions = (truth - truth.mean(axis=0)) ** 2 - (predicted - truth) ** 2
        error = reductions.std(axis=0) / len(reductions) ** 0.5
        metrics = {
            "examples": len(truth),
            "loss": self._loss / len(truth),
            "mse": float(squared.mean()),
            "rmse": float(squared.mean()) ** 0.5,
            "mae": float(absolute.mean()),
            "r2": float(explained[varies].mean()) if varies.any() else None,
        }
        # Of each number, compared with always predicting the mean.
        metrics["mse_reduction"] = {
            "mean": reductions.mean(axis=0).tolist(),
            "standard_error": error.tolist(),
        }
        if len(squared) > 1:
            per_number = {}
            for index in range(len(squared)):
                per_number[str(index)] = {
                    "rmse": float(squared[index]) ** 0.5,
                    "mae": float(absolute[index]),
                    "r2": float(explained[index]) if varies[index] else 0.0,
                }
            metrics["per_number"] = per_number
        return metrics
