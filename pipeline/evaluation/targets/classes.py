"""Evaluation of the target `classes`."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Metadata
from pipeline.evaluation.target_evaluation import (
    Calibrator,
    Evaluator,
    Score,
    TargetEvaluation,
)
from pipeline.tasks.targets.classes import ClassTarget
from pipeline.utils.calibration import CalibrationError, TemperatureFit
from pipeline.utils.columns import Columns

FEW = 50  # examples, of which an accuracy says little
MATRIX_CLASSES = 30
"""Up to this number of classes, the metrics have the whole confusion matrix."""
_MIN_PROBABILITY = 1e-7  # as in the losses of Keras
_MISTAKES = 30  # pairs of classes in the metrics if there is no matrix


class ClassEvaluation(TargetEvaluation):
    """Evaluates predictions of `classes`."""

    target: ClassTarget

    def calibrator(self, model: Any = None) -> Calibrator:
        """Fits the temperature by which the logits are divided."""
        return _Temperature()

    def evaluator(self, model: Any = None) -> Evaluator:
        temperature = (
            self.target.temperature if "temperature" in self.target.metadata else None
        )
        return ClassEvaluator(
            self.target.class_names, temperature, self.target.abstain_below
        )

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """`truth`, `prediction`, their probabilities, `correct`, and the `loss` before
        calibration; `answered` if predictions may be withheld.
        """
        truth = batch["label"].numpy().astype(np.int32)
        prediction = predictions["class"].numpy()
        probabilities = predictions["probabilities"].numpy()
        columns = {
            "truth": truth,
            "prediction": prediction,
            "probability": probabilities.max(axis=1),
            "probability_of_truth": probabilities[np.arange(len(truth)), truth],
            "correct": truth == prediction,
            "loss": predictions["loss"].numpy(),
        }
        if self.target.abstain_below:
            columns["answered"] = predictions["label"].numpy() != b""
        if self.target.temperature != 1:
            # softmax(logits) from softmax(logits / temperature)
            scores = (probabilities / probabilities.max(axis=1, keepdims=True)) ** (
                self.target.temperature
            )
            columns["uncalibrated"] = 1 / scores.sum(axis=1)
        return columns

    def readable(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Replaces the numbers of classes by their names.

        The probability before calibration, `uncalibrated`, is for the report only.
        """
        names = np.array(self.target.class_names)
        named = {name: names[columns[name]] for name in ("truth", "prediction")}
        kept = {key: value for key, value in columns.items() if key != "uncalibrated"}
        return {**kept, **named}

    def tables(self, columns: Mapping[str, np.ndarray]) -> dict[str, Columns]:
        """The confusion matrix of many classes, without its zeros."""
        if len(self.target.class_names) <= MATRIX_CLASSES:
            return {}
        pairs = np.stack([columns["truth"], columns["prediction"]], axis=1)
        pairs, counts = np.unique(pairs, axis=0, return_counts=True)
        names = self.target.class_names
        table = Columns(
            truth=[names[truth] for truth in pairs[:, 0]],
            prediction=[names[prediction] for prediction in pairs[:, 1]],
            examples=counts.tolist(),
        )
        return {"confusion_matrix.csv": table}

    def scores(self, rows: Mapping[str, np.ndarray]) -> dict[str, Score]:
        """Accuracy, the loss before calibration, and the cross-entropy of the
        probabilities as they are returned.
        """
        truth = rows["probability_of_truth"].astype(np.float64)
        loss = -np.log(np.maximum(truth, _MIN_PROBABILITY))
        return {**super().scores(rows), "calibrated_loss": Score.mean(loss, -1)}

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        return no_better_than(metrics)

    def explained_output(self, outputs: Any) -> tf.Tensor:
        """The logit of the prediction."""
        return tf.reduce_max(outputs, axis=-1)


class _Temperature(Calibrator):
    def __init__(self) -> None:
        self._fit = TemperatureFit()

    def update(self, outputs: Any, batch: Example) -> None:
        self._fit.update(outputs.numpy(), batch["label"].numpy())

    def result(self) -> Metadata:
        return {"temperature": self._fit.result()}


class ClassEvaluator(Evaluator):
    """Loss, accuracy, top-k accuracy, confusions, and precision, recall and F1 of each
    class. `balanced_accuracy` is the mean recall of the classes that have examples.

    With `abstain_below`, `coverage` is the fraction of the examples whose predictions
    are not withheld, and `selective_accuracy` the accuracy on these, if there are any;
    all other metrics are of all examples.

    `loss` and `calibration_error` are for the network as trained; with a temperature,
    `calibrated` has both for the calibrated probabilities. `confusion_matrix[i][j]`
    counts examples of class i predicted as class j; with more than 30 classes,
    `confusions` has the most frequent mistakes instead, [true, predicted, examples].
    """

    def __init__(
        self,
        class_names: list[str],
        temperature: float | None,
        abstain_below: float = 0.0,
    ) -> None:
        self._names = class_names
        self._abstain_below = abstain_below
        self._answered = 0
        self._answered_right = 0
        self._top = min(5, len(class_names) - 1)
        self._loss = 0.0
        self._top_right = 0
        self._pairs: list[np.ndarray] = []
        """The number true * classes + predicted of each example."""
        self._error = CalibrationError()
        self._calibrated = temperature and CalibrationError(temperature)

    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        truth = batch["label"].numpy()
        predicted = predictions["class"].numpy().astype(np.int64)
        logits = outputs.numpy()
        self._loss += float(predictions["loss"].numpy().astype(np.float64).sum())
        self._error.update(logits, truth)
        if self._calibrated:
            self._calibrated.update(logits, truth)
        self._pairs.append(truth * len(self._names) + predicted)
        probabilities = predictions["probabilities"].numpy()
        of_truth = probabilities[np.arange(len(truth)), truth]
        # Only classes that are less probable rank lower; a tie, or NaN, counts against
        # the model.
        lower = (probabilities < of_truth[:, None]).sum(axis=1)
        rank = probabilities.shape[1] - 1 - lower
        self._top_right += int((rank < self._top).sum())
        if self._abstain_below:
            is_answered = predictions["label"].numpy() != b""
            self._answered += int(is_answered.sum())
            self._answered_right += int((is_answered & (truth == predicted)).sum())

    def result(self) -> dict[str, Any]:
        count = len(self._names)
        pairs, examples = np.unique(np.concatenate(self._pairs), return_counts=True)
        true, predicted = np.divmod(pairs, count)
        total = int(examples.sum())
        is_right = true == predicted
        metrics: dict[str, Any] = {
            "examples": total,
            "loss": self._loss / total,
            "accuracy": int(examples[is_right].sum()) / total,
        }
        size = [np.bincount(part, examples, count) for part in (true, predicted)]
        right = np.bincount(true[is_right], examples[is_right], count)
        has_examples = size[0] > 0
        recall = right[has_examples] / size[0][has_examples]
        metrics["balanced_accuracy"] = float(recall.mean())
        if self._abstain_below:
            metrics["coverage"] = self._answered / total
        if self._answered:
            metrics["selective_accuracy"] = self._answered_right / self._answered
        if self._top > 1:
            metrics[f"top_{self._top}_accuracy"] = self._top_right / total
        metrics["calibration_error"] = self._error.result()["calibration_error"]
        if self._calibrated:
            metrics["calibrated"] = self._calibrated.result()
        metrics["chance"] = _chance(*(part.astype(np.float64) for part in size))
        metrics["per_class"] = self._per_class(right, size[0], size[1])
        if count <= MATRIX_CLASSES:
            matrix = np.zeros((count, count), np.int64)
            matrix[true, predicted] = examples
            metrics["confusion_matrix"] = matrix.tolist()
        else:
            wrong = np.flatnonzero(~is_right)
            order = wrong[np.argsort(-examples[wrong], kind="stable")][:_MISTAKES]
            metrics["confusions"] = [
                [self._names[true[i]], self._names[predicted[i]], int(examples[i])]
                for i in order
            ]
        return metrics

    def _per_class(
        self, right: np.ndarray, examples: np.ndarray, predicted: np.ndarray
    ) -> dict[str, dict[str, Any]]:
        """Precision, recall and F1 of each class; 0 where nothing can be divided."""
        precision = right / np.maximum(predicted, 1)
        recall = right / np.maximum(examples, 1)
        f1 = 2 * right / np.maximum(examples + predicted, 1)
        scores = {}
        for label, name in enumerate(self._names):
            scores[name] = {
                "precision": float(precision[label]),
                "recall": float(recall[label]),
                "f1": float(f1[label]),
                "examples": int(examples[label]),
            }
        return scores


def no_better_than(metrics: Mapping[str, Any]) -> str:
    """The largest class, unless the accuracy exceeds that of permuted predictions; of
    50 or more examples, by two standard deviations.

    Unlike a comparison with the share of the largest class, this counts a rare class
    that is found.
    """
    scores = metrics.get("per_class", {})
    scores = {name: score for name, score in scores.items() if score["examples"]}
    if len(scores) < 2 or "chance" not in metrics:
        return ""
    count = metrics["examples"]
    margin = 2 * metrics["chance"]["deviation"] if count >= FEW else 0
    if metrics["accuracy"] > metrics["chance"]["accuracy"] + margin:
        return ""
    largest = max(scores, key=lambda name: scores[name]["examples"])
    share = scores[largest]["examples"] / count
    return f"always predicting {largest!r} (accuracy {share:.3f})"


def _chance(true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Mean and standard deviation of the accuracy over all permutations of the
    predictions, from the numbers of true and predicted examples of each class.
    """
    total = true.sum()
    products = true * predicted
    agreements = products.sum()
    variance = agreements**2 - total * (products * (true + predicted)).sum()
    variance = (variance + total**2 * agreements) / max(total**2 * (total - 1), 1)
    return {
        "accuracy": float(agreements / total**2),
        "deviation": math.sqrt(max(float(variance), 0.0)) / float(total),
    }
