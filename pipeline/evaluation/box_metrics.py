"""Average precision of detected boxes, as COCO defines it.

Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014. The results equal
those of `pycocotools` for the same boxes.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

THRESHOLDS = np.linspace(0.5, 0.95, 10)
"""Least intersection over union of a match."""
RECALLS = np.linspace(0, 1, 101)
"""Recalls at which precision is averaged."""
# Smallest and largest area in pixels.
_AREAS = {
    "": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}


@dataclasses.dataclass(frozen=True)
class Boxes:
    """The boxes of an image: true ones, or predictions with scores."""

    corners: np.ndarray
    """left, top, right, bottom in pixels, (n, 4)."""
    classes: np.ndarray
    """Numbers of classes, int (n,)."""
    scores: np.ndarray
    """Of predictions; empty for true boxes."""
    ignored: np.ndarray
    """bool (n,): true boxes that need not be found, such as of crowds."""

    def of_class(self, number: int) -> "Boxes":
        """The boxes of a class, in their order."""
        chosen = self.classes == number
        scores = self.scores[chosen] if len(self.scores) else self.scores
        return Boxes(
            self.corners[chosen], self.classes[chosen], scores, self.ignored[chosen]
        )


def areas(corners: np.ndarray) -> np.ndarray:
    """Areas of boxes, (n,)."""
    return (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])


def overlaps(
    predictions: np.ndarray, truths: np.ndarray, ignored: np.ndarray
) -> np.ndarray:
    """Intersection over union of each prediction with each true box, (predictions,
    truths).

    An ignored true box may contain many objects: the intersection is divided by the
    area of the prediction alone.
    """
    corners = predictions[:, None].astype(np.float64), truths[None].astype(np.float64)
    first = np.maximum(corners[0][..., :2], corners[1][..., :2])
    last = np.minimum(corners[0][..., 2:], corners[1][..., 2:])
    common = np.clip(last - first, 0, None).prod(axis=-1)
    own = areas(predictions.astype(np.float64))[:, None]
    other = areas(truths.astype(np.float64))[None]
    union = np.where(ignored[None], own, own + other - common)
    return common / np.maximum(union, np.finfo(np.float64).tiny)


class AveragePrecision:
    """Matches boxes image by image, and averages precision over recalls."""

    def __init__(self, classes: int, max_boxes: int) -> None:
        """`max_boxes` predictions of an image and class count, those with the highest
        scores.
        """
        self._classes = classes
        self._max_boxes = max_boxes
        self._matches: list[list[_Matches]] = [[] for _ in range(classes)]

    def update(self, truths: Boxes, predictions: Boxes) -> None:
        """Adds an image."""
        for number in np.union1d(truths.classes, predictions.classes).tolist():
            matches = _match(
                truths.of_class(number), predictions.of_class(number), self._max_boxes
            )
            self._matches[number].append(matches)

    def result(self) -> "Precisions":
        """The precision of each class at each threshold, recall and range of areas."""
        shape = (self._classes, len(_AREAS), len(THRESHOLDS))
        precision = np.full((*shape, len(RECALLS)), np.nan)
        best = np.full((self._classes, 3), np.nan)
        counts = np.zeros(self._classes, np.int64)
        for number, images in enumerate(self._matches):
            for area in range(len(_AREAS)):
                outcomes = _merge(images, area)
                if not outcomes.count:
                    continue
                for threshold in range(len(THRESHOLDS)):
                    at = number, area, threshold
                    precision[at] = _curve(outcomes, threshold)
                if area == 0:
                    best[number] = _best(outcomes)
                    counts[number] = outcomes.count
        return Precisions(precision, best, counts)

    def best_score(self) -> float | None:
        """The least score with the best F1 of all classes together; None: there is no
        box.
        """
        images = [image for images in self._matches for image in images]
        outcomes = _merge(images, 0)
        return _best(outcomes)[2] if outcomes.count else None


@dataclasses.dataclass(frozen=True)
class Precisions:
    """Results of `AveragePrecision`; NaN for a class without true boxes."""

    precision: np.ndarray
    """(classes, areas, thresholds, recalls)."""
    best: np.ndarray
    """Precision, recall and score where their harmonic mean is highest, at the first
    threshold, (classes, 3).
    """
    counts: np.ndarray
    """True boxes of each class that are not ignored, int64 (classes,)."""

    def summary(self) -> dict[str, float]:
        """`ap` from 0.5 to 0.95, `ap50`, `ap75`, and `ap` of the areas with boxes."""
        scores = {
            "ap": _mean(self.precision[:, 0]),
            "ap50": _mean(self.precision[:, 0, 0]),
            "ap75": _mean(self.precision[:, 0, 5]),
        }
        for number, name in enumerate(_AREAS):
            values = self.precision[:, number]
            if name and not np.isnan(values).all():
                scores[f"ap_{name}"] = _mean(values)
        return scores

    def of_class(self, number: int) -> dict[str, float]:
        """The scores of a class."""
        precision, recall, _ = np.nan_to_num(self.best[number]).tolist()
        return {
            "ap50": _mean(self.precision[number, 0, 0]),
            "ap": _mean(self.precision[number, 0]),
            "precision": precision,
            "recall": recall,
            "boxes": int(self.counts[number]),
        }

    def curve(self, number: int) -> list[float]:
        """Precision of a class at each of `RECALLS`, at the first threshold."""
        return np.nan_to_num(self.precision[number, 0, 0]).round(4).tolist()


def _mean(values: np.ndarray) -> float:
    """The mean without NaN; 0 if there is nothing else."""
    return 0.0 if np.isnan(values).all() else float(np.nanmean(values))


@dataclasses.dataclass(frozen=True)
class _Matches:
    """The predictions of a class for an image, the highest scores first."""

    scores: np.ndarray
    is_match: np.ndarray
    """bool (areas, thresholds, predictions)."""
    is_ignored: np.ndarray
    counts: np.ndarray
    """True boxes that are not ignored, (areas,)."""


@dataclasses.dataclass(frozen=True)
class _Outcomes:
    """The predictions for several images, the highest scores first."""

    scores: np.ndarray
    right: np.ndarray
    """bool (thresholds, predictions)."""
    wrong: np.ndarray
    count: int
    """True boxes."""


def _merge(images: list[_Matches], area: int) -> _Outcomes:
    none = np.zeros((len(THRESHOLDS), 0), bool)
    scores = np.concatenate([np.empty(0), *(image.scores for image in images)])
    matches = [none, *(image.is_match[area] for image in images)]
    ignored = [none, *(image.is_ignored[area] for image in images)]
    order = np.argsort(-scores, kind="stable")
    is_match = np.concatenate(matches, axis=1)[:, order]
    counts = ~np.concatenate(ignored, axis=1)[:, order]
    total = sum(int(image.counts[area]) for image in images)
    return _Outcomes(scores[order], is_match & counts, ~is_match & counts, total)


def _match(truths: Boxes, predictions: Boxes, most: int) -> _Matches:
    """Gives each prediction the free true box that it overlaps most.

    Predictions with high scores choose first. Boxes that are ignored, or outside of the
    range of areas, are chosen only if there is no other box.
    """
    order = np.argsort(-predictions.scores, kind="stable")[:most]
    corners = predictions.corners[order]
    overlap = overlaps(corners, truths.corners, truths.ignored)
    limits = np.array(list(_AREAS.values()))
    low, high = limits[:, :1], limits[:, 1:]
    area = areas(truths.corners.astype(np.float64))
    ignored = truths.ignored | (area < low) | (area > high)
    shape = (len(limits), len(THRESHOLDS), len(truths.classes))
    is_taken = np.zeros(shape, bool)
    is_match = np.zeros((*shape[:2], len(order)), bool)
    is_ignored = np.zeros_like(is_match)
    least = np.minimum(THRESHOLDS, 1 - 1e-10)[:, None]
    for prediction in range(len(order) if shape[-1] else 0):
        may_take = (overlap[prediction] >= least) & (~is_taken | truths.ignored)
        counts = may_take & ~ignored[:, None]
        may_take &= counts | ~counts.any(axis=-1, keepdims=True)
        value = np.where(may_take, overlap[prediction], -1.0)
        # Of equal ones, the last.
        chosen = shape[-1] - 1 - value[..., ::-1].argmax(axis=-1)
        matches = may_take.any(axis=-1)
        is_match[..., prediction] = matches
        ignores = np.take_along_axis(ignored, chosen, axis=1)
        is_ignored[..., prediction] = matches & ignores
        rows = np.nonzero(matches)
        is_taken[(*rows, chosen[rows])] = True
    own = areas(corners.astype(np.float64))
    is_outside = (own < low) | (own > high)
    is_ignored |= ~is_match & is_outside[:, None]
    counts = (~ignored).sum(axis=1)
    return _Matches(predictions.scores[order], is_match, is_ignored, counts)


def _curve(outcomes: _Outcomes, threshold: int) -> np.ndarray:
    """Precision at each of `RECALLS`."""
    found = np.cumsum(outcomes.right[threshold])
    wrong = np.cumsum(outcomes.wrong[threshold])
    precision = found / (found + wrong + np.spacing(1))
    # The best precision at this recall or a higher one.
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    first = np.searchsorted(found / outcomes.count, RECALLS, side="left")
    return np.append(precision, 0.0)[first]


def _best(outcomes: _Outcomes) -> tuple[float, float, float]:
    """Precision, recall and least score where F1 is highest, at the first threshold.

    The score is the mean of this prediction's and the next one's, so that rounding does
    not matter.
    """
    scores = outcomes.scores
    if not len(scores):
        return 0.0, 0.0, 1.0
    found = np.cumsum(outcomes.right[0])
    answered = found + np.cumsum(outcomes.wrong[0])
    at = int((2 * found / np.maximum(answered + outcomes.count, 1)).argmax())
    score = float(np.append(scores, 0.0)[at : at + 2].mean())
    precision = float(found[at] / max(answered[at], 1))
    return precision, float(found[at] / outcomes.count), score


def pair(truths: Boxes, predictions: Boxes) -> Mapping[str, Any]:
    """What is right and wrong with the predictions for an image, at the first
    threshold.

    Returns `right`, `wrong_class` and `false`, bool (predictions,), and `missed`, bool
    (truths,). A box of the wrong class overlaps a true box that no right prediction
    has.
    """
    overlap = overlaps(predictions.corners, truths.corners, truths.ignored)
    right = np.zeros(len(predictions.classes), bool)
    wrong_class = np.zeros_like(right)
    is_taken = np.zeros(len(truths.classes), bool)
    excused = np.zeros_like(right)
    order = np.argsort(-predictions.scores, kind="stable")
    for outcome, same in ((right, True), (wrong_class, False)):
        for prediction in order:
            if right[prediction] or not len(is_taken):
                continue
            fits = (overlap[prediction] >= THRESHOLDS[0]) & ~is_taken
            fits &= (truths.classes == predictions.classes[prediction]) == same
            fits &= ~truths.ignored
            if not fits.any():
                continue
            chosen = int(np.where(fits, overlap[prediction], -1).argmax())
            outcome[prediction] = True
            is_taken[chosen] = True
    if truths.ignored.any():
        excused = (overlap[:, truths.ignored] >= THRESHOLDS[0]).any(axis=1)
    return {
        "right": right,
        "wrong_class": wrong_class,
        "false": ~right & ~wrong_class & ~excused,
        "missed": ~is_taken & ~truths.ignored,
    }
