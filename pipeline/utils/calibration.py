"""Calibration: one temperature for all logits, fitted on held-out examples.

Method and measure: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
sections 2 and 4.2.
"""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

_BINS = 15  # as in the paper
# A temperature beyond these means a broken network, not a miscalibrated one.
_LOWEST = 0.05
_HIGHEST = 20.0
_WIDTH = 0.35
"""Standard deviation of the prior of log T, a normal distribution around 0, without
which fitting a few examples could raise the loss (`benchmarks/README.md`).
"""


def fit_temperature(
    logits: np.ndarray, labels: np.ndarray, width: float = _WIDTH
) -> float:
    """The most probable temperature T if softmax(logits / T) is the probability of the
    labels.

    T does not change the predicted class, only its confidence: T above 1 lowers it,
    below 1 raises it. A few examples move T only slightly away from 1; thousands move
    it to the maximum of their likelihood. T is from 0.05 to 20; 1 if all answers are
    correct, when it has no lower bound.

    Args:
        logits: Of examples that the network was not trained on, (examples, classes).
        labels: Their labels, int (examples,).
        width: Standard deviation of the prior of log T; infinite for no prior.
    """
    logits = logits.astype(np.float64)
    if not (logits.max(axis=1) > logits[np.arange(len(labels)), labels]).any():
        return 1.0

    # The loss is convex in 1 / T. With the prior there may be a second minimum if all
    # logits are tiny, when the network has learned nothing.
    def negative_log_posterior(exponent: float) -> float:
        loss = loss_and_error(logits, labels, np.exp(exponent))["loss"]
        return loss * len(labels) + exponent**2 / (2 * width**2)

    best = minimize_scalar(
        negative_log_posterior,
        bounds=(np.log(_LOWEST), np.log(_HIGHEST)),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(np.exp(best.x))


def loss_and_error(
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
    return {
        "loss": float(loss.mean()),
        "calibration_error": _calibration_error(confidence, right),
    }


def _calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    if not np.isfinite(confidence).all():
        return float("nan")
    # A bin includes its upper end: ((m - 1) / 15, m / 15].
    bins = np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)
    errors = right - confidence.astype(np.float64)
    gaps = np.bincount(bins, weights=errors, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(confidence))
