"""Evaluation of the target `boxes`."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Metadata
from pipeline.evaluation import box_metrics
from pipeline.evaluation.box_metrics import AveragePrecision, Boxes
from pipeline.evaluation.target_evaluation import (
    Calibrator,
    Evaluator,
    Score,
    TargetEvaluation,
)
from pipeline.tasks.targets.boxes import BoxTarget, geometry_offset, geometry_scale

_MIN_AP50 = 0.05  # a detector with less finds nearly nothing


class BoxEvaluation(TargetEvaluation):
    """Evaluates predictions of `boxes`."""

    target: BoxTarget

    def evaluator(self, model: Any = None) -> Evaluator:
        return BoxEvaluator(self.target)

    def calibrator(self, model: Any = None) -> Calibrator:
        return _ScoreCalibrator(self.target)

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """`truth` and `prediction`, the classes of confident boxes in words; whether
        they are `correct`; the number of `right`, `false` and `missed` boxes, and of
        those of a `wrong_class`; the `probability` of the most confident mistake; and
        the `loss`.
        """
        rows = []
        for truths, found, count in images(predictions, batch):
            confident = first_boxes(found, count)
            outcome = box_metrics.pair(truths, confident)
            mistakes = confident.scores[outcome["false"] | outcome["wrong_class"]]
            counts = {
                name: int(outcome[name].sum())
                for name in ("right", "false", "missed", "wrong_class")
            }
            rows.append(
                {
                    "truth": self.counts(truths.classes[~truths.ignored]),
                    "prediction": self.counts(confident.classes),
                    "correct": len(mistakes) + counts["missed"] == 0,
                    **counts,
                    "probability": float(mistakes.max(initial=0.0)),
                }
            )
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        columns["probability"] = columns["probability"].astype(np.float32)
        return {**columns, "loss": predictions["loss"].numpy()}

    def counts(self, labels: np.ndarray) -> str:
        """Such as `3 cat, 1 dog`; `none` without boxes."""
        counts = Counter(labels.ravel().tolist())
        names = self.target.class_names
        parts = [f"{counts[number]:,} {names[number]}" for number in sorted(counts)]
        return ", ".join(parts) or "none"

    def scores(self, rows: Mapping[str, np.ndarray]) -> dict[str, Score]:
        """The F1 of confident boxes at an intersection over union of 0.5, and the loss.

        Unlike an average precision, it is a ratio of sums over images.
        """
        names = ("right", "false", "missed", "wrong_class")
        right, false, missed, wrong_class = (rows[n].astype(np.float64) for n in names)
        # Predicted and true boxes.
        boxes = 2 * right + false + missed + 2 * wrong_class
        return {"f1": Score(2 * right, boxes, 1), "loss": super().scores(rows)["loss"]}

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        """No boxes at all, if nearly none is right."""
        if metrics["ap50"] >= _MIN_AP50 or not any(
            score["boxes"] for score in metrics["per_class"].values()
        ):
            return ""
        return f"finding no boxes (ap50 {metrics['ap50']:.3f})"


def as_batch(example: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """A batch of one example, of the fields that `images` reads."""
    names = ("boxes", "box_labels", "box_ignored", "geometry", "scores", "classes")
    fields = {name: example[name] for name in (*names, "count") if name in example}
    return {
        name: tf.constant(np.asarray(value)[None]) for name, value in fields.items()
    }


def images(predictions: Example, batch: Example) -> Iterator[tuple[Boxes, Boxes, int]]:
    """Yields true boxes, predictions, and how many of these are confident, for each
    example; all in pixels of the original image.
    """
    geometry = batch["geometry"][:, None]
    corners = (
        (batch["boxes"] - geometry_offset(geometry)) / geometry_scale(geometry)
    ).numpy()
    labels = batch["box_labels"].numpy()
    ignored = batch["box_ignored"].numpy() > 0
    found = {name: predictions[name].numpy() for name in ("boxes", "scores", "classes")}
    counts = predictions["count"].numpy().tolist()
    for row, count in enumerate(counts):
        is_true = labels[row] >= 0
        truths = Boxes(
            corners[row][is_true],
            labels[row][is_true],
            np.empty(0),
            ignored[row][is_true],
        )
        is_box = found["classes"][row] >= 0
        none = np.zeros(int(is_box.sum()), bool)
        boxes, scores, classes = (values[row][is_box] for values in found.values())
        yield truths, Boxes(boxes, classes, scores, none), count


def first_boxes(boxes: Boxes, count: int) -> Boxes:
    """The first boxes."""
    return Boxes(
        boxes.corners[:count],
        boxes.classes[:count],
        boxes.scores[:count],
        boxes.ignored[:count],
    )


class BoxEvaluator(Evaluator):
    """Loss, the average precisions of COCO for all classes and sizes, for each class
    its best precision and recall, curves, and the number of mistakes.
    """

    def __init__(self, target: BoxTarget) -> None:
        self._names = target.class_names
        self._examples = 0
        self._loss = 0.0
        self._precision = AveragePrecision(len(self._names), target.max_boxes)
        self._mistakes: Counter[str] = Counter()

    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        self._loss += float(predictions["loss"].numpy().astype(np.float64).sum())
        for truths, found, count in images(predictions, batch):
            self._examples += 1
            self._precision.update(truths, found)
            outcome = box_metrics.pair(truths, first_boxes(found, count))
            for name in ("right", "false", "missed", "wrong_class"):
                self._mistakes[name] += int(outcome[name].sum())

    def result(self) -> dict[str, Any]:
        precisions = self._precision.result()
        per_class = {}
        curves = {}
        for number, name in enumerate(self._names):
            per_class[name] = precisions.of_class(number)
            if precisions.counts[number]:
                curves[name] = precisions.curve(number)
        return {
            "examples": self._examples,
            "loss": self._loss / self._examples,
            **precisions.summary(),
            "mistakes": dict(self._mistakes),
            "per_class": per_class,
            "curves": curves,
        }


class _ScoreCalibrator(Calibrator):
    """Fits the score threshold: the one with the best F1 of all classes."""

    def __init__(self, target: BoxTarget) -> None:
        self._target = target
        self._precision = AveragePrecision(len(target.class_names), target.max_boxes)

    def update(self, outputs: Any, batch: Example) -> None:
        predictions = self._target.predict(outputs, batch)
        for truths, found, _ in images(predictions, batch):
            self._precision.update(truths, found)

    def result(self) -> Metadata:
        score = self._precision.best_score()
        return {} if score is None else {"score_threshold": score}
