"""Evaluation of the target `labels`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example
from pipeline.evaluation.target_evaluation import Evaluator, Score, TargetEvaluation
from pipeline.tasks.targets.labels import LabelTarget

_BINS = 1000  # of probabilities, for the average precision


class LabelEvaluation(TargetEvaluation):
    """Evaluates predictions of `labels`."""

    target: LabelTarget

    def evaluator(self, model: Any = None) -> Evaluator:
        return LabelEvaluator(self.target.class_names)

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """`truth` and `prediction` as bits, how many are `wrong`, and `loss`."""
        truth = batch["labels"].numpy().astype(bool)
        prediction = predictions["probabilities"].numpy() >= 0.5
        return {
            "truth": np.packbits(truth, axis=1),
            "prediction": np.packbits(prediction, axis=1),
            "wrong": (truth != prediction).sum(axis=1).astype(np.int32),
            "loss": predictions["loss"].numpy(),
        }

    def readable(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Replaces bits by the names of the labels, separated by `|`."""
        named = dict(columns)
        for name in ("truth", "prediction"):
            bits = np.unpackbits(
                columns[name], axis=1, count=len(self.target.class_names)
            )
            texts = [self.target.names_of(row) for row in bits]
            named[name] = np.array(texts, object)
        return named

    def scores(self, rows: Mapping[str, np.ndarray]) -> dict[str, Score]:
        """F1 over all labels of all examples, and the loss."""
        found, labels = [], []
        for truth, prediction in zip(rows["truth"], rows["prediction"], strict=True):
            true, predicted = set(truth.split("|")), set(prediction.split("|"))
            found.append(2.0 * len((true & predicted) - {""}))
            labels.append(float(len(true - {""}) + len(predicted - {""})))
        return {
            "f1": Score(np.array(found), np.array(labels), 1),
            **super().scores(rows),
        }

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        """Chance, if the area under the ROC curve is within two standard errors of
        0.5.
        """
        area = metrics["roc"]["mean_area"]
        if area is None or area > 0.5 + 2 * metrics["roc"]["standard_error"]:
            return ""
        return f"chance (mean area under the ROC curves {area:.3f}, chance 0.5)"

    def explained_output(self, outputs: Any) -> tf.Tensor:
        """The logit of the most probable label."""
        return tf.reduce_max(outputs, axis=-1)


class LabelEvaluator(Evaluator):
    """Loss, F1 over all predictions (micro), the fraction of examples with all labels
    right, the mean average precision over the labels that have examples, and
    precision, recall, F1 and average precision of each label.
    """

    def __init__(self, names: list[str]) -> None:
        self.names_of = names
        self._examples = 0
        self._loss = 0.0
        self._exact = 0
        self._right = np.zeros(len(names), np.int64)
        self._true = np.zeros(len(names), np.int64)
        self._predicted = np.zeros(len(names), np.int64)
        self._histogram = np.zeros((len(names), 2, _BINS), np.int64)
        """Examples of each label without and with it, by probability."""

    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        truth = batch["labels"].numpy().astype(bool)
        probabilities = predictions["probabilities"].numpy()
        predicted = probabilities >= 0.5
        self._examples += len(truth)
        self._loss += float(predictions["loss"].numpy().astype(np.float64).sum())
        self._exact += int((truth == predicted).all(axis=1).sum())
        self._right += (truth & predicted).sum(axis=0)
        self._true += truth.sum(axis=0)
        self._predicted += predicted.sum(axis=0)
        bins = np.clip((probabilities * _BINS).astype(np.int64), 0, _BINS - 1)
        label = np.arange(len(self.names_of))[None, :]
        np.add.at(self._histogram, (label, truth.astype(np.int64), bins), 1)

    def result(self) -> dict[str, Any]:
        precision = self._right / np.maximum(self._predicted, 1)
        recall = self._right / np.maximum(self._true, 1)
        f1 = 2 * self._right / np.maximum(self._true + self._predicted, 1)
        average_precision = self._average_precision()
        per_class = {}
        for index, name in enumerate(self.names_of):
            per_class[name] = {
                "precision": float(precision[index]),
                "recall": float(recall[index]),
                "f1": float(f1[index]),
                "average_precision": float(average_precision[index]),
                "examples": int(self._true[index]),
            }
        total = max(int(self._true.sum() + self._predicted.sum()), 1)
        has_examples = self._true > 0
        wrong = int((self._true + self._predicted - 2 * self._right).sum())
        mean_precision = (
            average_precision[has_examples].mean() if has_examples.any() else 0.0
        )
        return {
            "examples": self._examples,
            "loss": self._loss / self._examples,
            "f1": 2 * int(self._right.sum()) / total,
            "exact_match": self._exact / self._examples,
            "binary_accuracy": 1 - wrong / (self._examples * len(self.names_of)),
            "mean_average_precision": float(mean_precision),
            "roc": self._roc(),
            "per_class": per_class,
        }

    def _roc(self) -> dict[str, float | None]:
        """The mean area under the ROC curves of the labels that some examples have and
        others lack, and its standard error if the predictions were random (Mann and
        Whitney, 1947).
        """
        without, with_label = np.moveaxis(self._histogram, 1, 0).astype(np.float64)
        counts = with_label.sum(axis=1), without.sum(axis=1)
        pairs = counts[0] * counts[1]
        if not pairs.any():
            return {"mean_area": None, "standard_error": None}
        below = np.cumsum(without, axis=1) - without / 2
        areas = (with_label * below).sum(axis=1)[pairs > 0] / pairs[pairs > 0]
        variances = (counts[0] + counts[1] + 1)[pairs > 0] / (12 * pairs[pairs > 0])
        error = float(np.sqrt(variances.sum()) / len(areas))
        return {"mean_area": float(areas.mean()), "standard_error": error}

    def _average_precision(self) -> np.ndarray:
        """The area under precision over recall of each label, (labels,)."""
        # From the highest probability down.
        without, with_label = np.moveaxis(self._histogram[:, :, ::-1], 1, 0)
        right = np.cumsum(with_label, axis=1)
        answered = right + np.cumsum(without, axis=1)
        precision = right / np.maximum(answered, 1)
        step = with_label / np.maximum(right[:, -1:], 1)
        return (precision * step).sum(axis=1)
