"""Metrics of the tasks: what `Task.evaluate` computes from all answers to a split.

Calibrated probabilities have one temperature, fitted on held-out examples. Method and
measure: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, sections 2
and 4.2.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

# Pairs of true and predicted values that are kept for the plot.
_PAIRS = 500
_BINS = 15  # as in the paper
# A temperature beyond these means a broken network, not a miscalibrated one.
_LOWEST, _HIGHEST = 0.05, 20.0
_WIDTH = 0.35
"""Standard deviation of the prior of log T, a normal distribution around 0, without
which fitting a few examples could raise the loss (`benchmarks/README.md`).
"""


def classification(
    answers: Mapping[str, np.ndarray],
    class_names: Sequence[str],
    temperature: float | None,
) -> dict[str, Any]:
    """Loss, accuracy, top-k accuracy, confusion matrix; precision, recall and F1 per
    class.

    `confusion_matrix[i][j]` counts examples of class i answered as class j. `loss` and
    `calibration_error` are those of the network as trained; with a temperature,
    `calibrated` has both for the calibrated probabilities.
    """
    from sklearn import metrics

    truth, answered, logits = answers["truth"], answers["class"], answers["outputs"]
    classes = np.arange(len(class_names))
    top = min(5, len(classes) - 1)
    calibrated = {}
    if temperature is not None:
        calibrated["calibrated"] = measured(logits, truth, temperature)
    *scores, counts = metrics.precision_recall_fscore_support(
        truth, answered, labels=classes, zero_division=0.0
    )
    # The counts are floats if a class has no example.
    rows = zip(
        *(score.tolist() for score in (*scores, counts.astype(int))), strict=True
    )
    return {
        "examples": len(truth),
        "loss": float(answers["loss"].mean()),
        "accuracy": float((truth == answered).mean()),
        **({f"top_{top}_accuracy": _top_k_accuracy(answers, top)} if top > 1 else {}),
        "calibration_error": measured(logits, truth)["calibration_error"],
        **calibrated,
        "per_class": {
            name: dict(zip(("precision", "recall", "f1", "examples"), row, strict=True))
            for name, row in zip(class_names, rows, strict=True)
        },
        "confusion_matrix": (
            metrics.confusion_matrix(truth, answered, labels=classes).tolist()
        ),
    }


def _top_k_accuracy(answers: Mapping[str, np.ndarray], k: int) -> float:
    """Fraction of the examples whose label is among the k most probable classes."""
    truth, probabilities = answers["truth"], answers["probabilities"]
    of_truth = probabilities[np.arange(len(truth)), truth]
    # Only classes that are less probable rank lower; a tie, or NaN, counts against the
    # model.
    rank = probabilities.shape[1] - 1 - (probabilities < of_truth[:, None]).sum(axis=1)
    return float((rank < k).mean())


def regression(answers: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Loss; mean squared, root mean squared and mean absolute error; r2; pairs for a
    plot.

    `r2` is the fraction of the target's variance that is explained, 1 - mse / variance:
    at most 1, negative for a model worse than the mean of these targets, None if they
    are all equal. The answers have `truth` (examples, 1), and `prediction` and `loss`
    (examples,).
    """
    truth = answers["truth"][:, 0].astype(np.float64)
    predicted = answers["prediction"].astype(np.float64)
    squared = float(((predicted - truth) ** 2).mean())
    some = np.unique(np.linspace(0, len(truth) - 1, _PAIRS).astype(int))
    return {
        "examples": len(truth),
        "loss": float(answers["loss"].mean()),
        "mse": squared,
        "rmse": squared**0.5,
        "mae": float(np.abs(predicted - truth).mean()),
        "r2": float(1 - squared / truth.var()) if np.ptp(truth) else None,
        "pairs": {"true": truth[some].tolist(), "predicted": predicted[some].tolist()},
    }


def temperature(logits: np.ndarray, labels: np.ndarray, width: float = _WIDTH) -> float:
    """The most probable T, given that softmax(logits / T) is the probability of the
    labels.

    T does not change the predicted class, only its confidence: T above 1 lowers it,
    below 1 raises it. A few examples move T only slightly away from 1; thousands move
    it to the maximum of their likelihood. T is from 0.05 to 20; 1 if all answers are
    correct, when it has no lower bound.

    Takes logits (examples, classes) and labels, int (examples,), that the network was
    not trained on, and the standard deviation of the prior of log T; infinite for none.
    """
    logits = logits.astype(np.float64)
    if not (logits.max(axis=1) > logits[np.arange(len(labels)), labels]).any():
        return 1.0
    # The loss is convex in 1 / T. With the prior there may be a second minimum if all
    # logits are tiny, when the network has learned nothing.
    found = minimize_scalar(
        lambda exponent: (
            measured(logits, labels, np.exp(exponent))["loss"] * len(labels)
            + exponent**2 / (2 * width**2)
        ),
        bounds=(np.log(_LOWEST), np.log(_HIGHEST)),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(np.exp(found.x))


def measured(
    logits: np.ndarray, labels: np.ndarray, temperature: float = 1.0
) -> dict[str, float]:
    """`loss` and `calibration_error` of the probabilities softmax(logits /
    temperature).

    The error is the difference between accuracy and confidence, averaged over 15
    equally wide bins of confidence, weighted by their number of examples. 0 is best, 1
    is worst.
    """
    scaled = logits / temperature
    total = logsumexp(scaled, axis=1)
    loss = total - scaled[np.arange(len(labels)), labels]
    confidence = np.exp(scaled.max(axis=1) - total)
    right = logits.argmax(axis=1) == labels
    return {"loss": float(loss.mean()), "calibration_error": _error(confidence, right)}


def _error(confidence: np.ndarray, right: np.ndarray) -> float:
    if not np.isfinite(confidence).all():
        return float("nan")
    # A bin includes its upper end: ((m - 1) / 15, m / 15].
    bins = np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)
    gaps = np.bincount(
        bins, weights=right - confidence.astype(np.float64), minlength=_BINS
    )
    return float(np.abs(gaps).sum() / len(confidence))
