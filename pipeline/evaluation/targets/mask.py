"""Evaluation of the target `mask`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.contracts import Example
from pipeline.data.mask_files import IGNORED
from pipeline.evaluation.target_evaluation import Evaluator, Score, TargetEvaluation
from pipeline.tasks.targets.mask import MaskTarget

_RECALL_MARGIN = 0.05  # of the mean recall over chance


class MaskEvaluation(TargetEvaluation):
    """Evaluates predictions of `mask`."""

    target: MaskTarget

    def evaluator(self, model: Any = None) -> Evaluator:
        return MaskEvaluator(self.target.class_names)

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """`pixel_accuracy` and `loss` of each example."""
        truth = batch["mask"].numpy()
        counts = truth != IGNORED
        right = (predictions["mask"].numpy() == truth) & counts
        pixels = np.maximum(counts.sum(axis=(1, 2)), 1)
        accuracy = right.sum(axis=(1, 2)) / pixels
        return {
            "pixel_accuracy": accuracy.astype(np.float32),
            "loss": predictions["loss"].numpy(),
        }

    def scores(self, rows: Mapping[str, np.ndarray]) -> dict[str, Score]:
        """The mean over images of the share of right pixels, and the loss."""
        accuracy = Score.mean(rows["pixel_accuracy"], 1)
        return {"pixel_accuracy": accuracy, **super().scores(rows)}

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        """The largest class, unless more pixels are right or the mean recall is over
        chance: a rare class that is found costs a few pixels of the largest.
        """
        scores = {k: v for k, v in metrics["per_class"].items() if v["pixels"]}
        if len(scores) < 2:
            return ""
        largest = max(scores, key=lambda name: scores[name]["pixels"])
        pixels = sum(score["pixels"] for score in scores.values())
        share = scores[largest]["pixels"] / pixels
        recall = sum(score["recall"] for score in scores.values()) / len(scores)
        if (
            metrics["pixel_accuracy"] > share
            or recall > 1 / len(scores) + _RECALL_MARGIN
        ):
            return ""
        return f"always predicting {largest!r} ({share:.1%} of the pixels)"


class MaskEvaluator(Evaluator):
    """Loss, pixel accuracy, the intersection over union of each class, and its mean
    over the classes that occur.
    """

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._examples = 0
        self._loss = 0.0
        self._pixels = np.zeros((len(names), len(names)), np.int64)
        """Pixels by true and predicted class."""

    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        count = len(self._names)
        truth = batch["mask"].numpy().ravel()
        predicted = predictions["mask"].numpy().ravel()
        self._examples += len(batch["mask"])
        self._loss += float(predictions["loss"].numpy().astype(np.float64).sum())
        has_class = truth != IGNORED
        pairs = truth[has_class].astype(np.int64) * count + predicted[has_class]
        counts = np.bincount(pairs, minlength=count * count)
        self._pixels += counts.reshape(count, count)

    def result(self) -> dict[str, Any]:
        right = np.diagonal(self._pixels)
        true = self._pixels.sum(axis=1)
        predicted = self._pixels.sum(axis=0)
        union = true + predicted - right
        iou = right / np.maximum(union, 1)
        per_class = {}
        for index, name in enumerate(self._names):
            per_class[name] = {
                "iou": float(iou[index]),
                "precision": float(right[index] / max(predicted[index], 1)),
                "recall": float(right[index] / max(true[index], 1)),
                "pixels": int(true[index]),
            }
        occurs = union > 0
        return {
            "examples": self._examples,
            "loss": self._loss / self._examples,
            "mean_iou": float(iou[occurs].mean()) if occurs.any() else 0.0,
            "pixel_accuracy": int(right.sum()) / max(int(true.sum()), 1),
            "per_class": per_class,
        }
