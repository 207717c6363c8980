"""Metrics of the tasks, computed from all answers to a split."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.utils import calibration

# Pairs of true and predicted values that are kept for the plot.
_PAIRS = 500


def classification(
    answers: Mapping[str, np.ndarray],
    class_names: Sequence[str],
    temperature: float | None,
) -> dict[str, Any]:
    """Computes the metrics of a classification.

    These are loss, accuracy, top-k accuracy, confusion matrix, and precision, recall
    and F1 per class. `confusion_matrix[i][j]` counts examples of class i answered as
    class j. `loss` and `calibration_error` are for the network as trained; with a
    temperature, `calibrated` has both for the calibrated probabilities.
    """
    from sklearn import metrics

    truth = answers["truth"]
    predicted = answers["class"]
    logits = answers["outputs"]
    classes = np.arange(len(class_names))
    top = min(5, len(classes) - 1)
    error = calibration.loss_and_error(logits, truth)["calibration_error"]
    calibrated = {}
    if temperature is not None:
        scores = calibration.loss_and_error(logits, truth, temperature)
        calibrated["calibrated"] = scores
    *scores, counts = metrics.precision_recall_fscore_support(
        truth, predicted, labels=classes, zero_division=0.0
    )
    # The counts are floats if a class has no example.
    columns = [score.tolist() for score in (*scores, counts.astype(int))]
    per_class = {}
    for name, row in zip(class_names, zip(*columns, strict=True), strict=True):
        names = ("precision", "recall", "f1", "examples")
        per_class[name] = dict(zip(names, row, strict=True))
    matrix = metrics.confusion_matrix(truth, predicted, labels=classes)
    return {
        "examples": len(truth),
        "loss": float(answers["loss"].mean()),
        "accuracy": float((truth == predicted).mean()),
        **({f"top_{top}_accuracy": _top_k_accuracy(answers, top)} if top > 1 else {}),
        "calibration_error": error,
        **calibrated,
        "per_class": per_class,
        "confusion_matrix": matrix.tolist(),
    }


def _top_k_accuracy(answers: Mapping[str, np.ndarray], k: int) -> float:
    """Returns how often the label is among the k most probable classes."""
    truth = answers["truth"]
    probabilities = answers["probabilities"]
    of_truth = probabilities[np.arange(len(truth)), truth]
    # Only classes that are less probable rank lower; a tie, or NaN, counts against the
    # model.
    rank = probabilities.shape[1] - 1 - (probabilities < of_truth[:, None]).sum(axis=1)
    return float((rank < k).mean())


def regression(answers: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Computes the metrics of a regression, and pairs of values for a plot.

    `r2` is the fraction of the target's variance that is explained, 1 - mse / variance:
    at most 1, negative for a model worse than the mean of these targets, None if they
    are all equal. The answers have `truth` (examples, 1), and `prediction` and `loss`
    (examples,).
    """
    truth = answers["truth"][:, 0].astype(np.float64)
    predicted = answers["prediction"].astype(np.float64)
    squared = float(((predicted - truth) ** 2).mean())
    rows = np.unique(np.linspace(0, len(truth) - 1, _PAIRS).astype(int))
    return {
        "examples": len(truth),
        "loss": float(answers["loss"].mean()),
        "mse": squared,
        "rmse": squared**0.5,
        "mae": float(np.abs(predicted - truth).mean()),
        "r2": float(1 - squared / truth.var()) if np.ptp(truth) else None,
        "pairs": {"true": truth[rows].tolist(), "predicted": predicted[rows].tolist()},
    }
