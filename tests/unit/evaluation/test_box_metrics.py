"""Average precision against pycocotools, on random boxes."""

import contextlib
import io

import numpy as np
import pytest
from pycocotools import coco, cocoeval

from pipeline.evaluation.box_metrics import AveragePrecision, Boxes, pair

CLASSES = 3


def random_boxes(generator, count, side):
    first = generator.uniform(0, 200, (count, 2)).round(1)
    size = generator.uniform(2, side, (count, 2)).round(1)
    return np.concatenate([first, first + size], axis=1)


def random_images(seed, images=30):
    """True boxes, and predictions that repeat most of them, moved a little."""
    generator = np.random.default_rng(seed)
    pairs = []
    for _ in range(images):
        count = generator.integers(0, 12)
        corners = random_boxes(generator, count, 150)
        classes = generator.integers(0, CLASSES, count)
        ignored = generator.random(count) < 0.2
        truths = Boxes(corners, classes, np.empty(0), ignored)
        moved = corners + generator.normal(0, 4, corners.shape)
        moved = np.concatenate([moved, corners, random_boxes(generator, 8, 150)])
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        own = generator.integers(0, CLASSES, len(moved))
        own[:count] = classes
        # With equal scores.
        scores = generator.random(len(moved)).round(2)
        predictions = Boxes(moved, own, scores, np.zeros(len(moved), bool))
        pairs.append((truths, predictions))
    return pairs


def coco_scores(pairs):
    """The scores of pycocotools: ap, ap50, ap75, small, medium, large; and of each
    class."""

    def entry(corners, number, image, **more):
        left, top, right, bottom = corners.tolist()
        box = [left, top, right - left, bottom - top]
        area = box[2] * box[3]
        return {
            **{"bbox": box, "area": area, "category_id": int(number) + 1},
            **{"image_id": image, **more},
        }

    truths, predictions = [], []
    for image, (truth, prediction) in enumerate(pairs, 1):
        for corners, number, ignored in zip(
            truth.corners, truth.classes, truth.ignored, strict=True
        ):
            at = len(truths) + 1
            truths.append(entry(corners, number, image, id=at, iscrowd=int(ignored)))
        for corners, number, score in zip(
            prediction.corners, prediction.classes, prediction.scores, strict=True
        ):
            predictions.append(entry(corners, number, image, score=float(score)))
    data = {
        "info": {},
        "images": [{"id": image} for image in range(1, len(pairs) + 1)],
        "categories": [{"id": number + 1} for number in range(CLASSES)],
        "annotations": truths,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        expected = coco.COCO()
        expected.dataset = data
        expected.createIndex()
        evaluation = cocoeval.COCOeval(expected, expected.loadRes(predictions), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]
    return evaluation.stats[:6], precision


@pytest.mark.parametrize("seed", range(2))
def test_equal_to_pycocotools(seed):
    pairs = random_images(seed)
    expected, precision = coco_scores(pairs)
    metric = AveragePrecision(CLASSES, 100)
    for truths, predictions in pairs:
        metric.update(truths, predictions)
    result = metric.result()
    names = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
    scores = result.summary()
    np.testing.assert_allclose([scores[name] for name in names], expected, atol=1e-6)
    assert 0.05 < scores["ap"] < 0.95
    for number in range(CLASSES):
        own = result.precision[number, 0]
        np.testing.assert_allclose(own, precision[:, :, number], atol=1e-6)


def test_boxes_without_a_partner_are_missed_false_or_of_the_wrong_class():
    corners = np.array([[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10.0]])
    truths = Boxes(corners, np.array([0, 1, 1]), np.empty(0), np.zeros(3, bool))
    found = np.array([[0, 0, 10, 9], [20, 1, 30, 10], [0, 1, 10, 10], [80, 0, 90, 9.0]])
    scores = np.array([0.9, 0.8, 0.7, 0.6])
    predictions = Boxes(found, np.array([0, 0, 0, 1]), scores, np.zeros(4, bool))
    outcome = pair(truths, predictions)
    assert outcome["right"].tolist() == [True, False, False, False]
    assert outcome["wrong_class"].tolist() == [False, True, False, False]
    assert outcome["false"].tolist() == [False, False, True, True]
    assert outcome["missed"].tolist() == [False, False, True]


def test_a_class_without_boxes_does_not_count():
    metric = AveragePrecision(2, 100)
    corners = np.array([[0.0, 0, 40, 40]])
    none = np.zeros(1, bool)
    truths = Boxes(corners, np.array([0]), np.empty(0), none)
    metric.update(truths, Boxes(corners, np.array([0]), np.array([0.9]), none))
    metric.update(truths, Boxes(corners, np.array([1]), np.array([0.9]), none))
    scores = metric.result().summary()
    assert scores["ap50"] == pytest.approx(51 / 101)
    assert "ap_small" not in scores and "ap_medium" in scores
