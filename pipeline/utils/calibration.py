"""Calibration: one temperature for all logits, fitted on held-out examples.

Method and measure: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
sections 2 and 4.2.
"""

from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

_BINS = 15  # as in the paper
# A temperature beyond these means a broken network, not a miscalibrated one.
_LOWEST = 0.05
_HIGHEST = 20.0
_TEMPERATURES = 64
_FOLDS = 5
# Standard errors by which held-out losses must fall; otherwise T is 1.
_STANDARD_ERRORS = 2.0
_WIDTH = 0.35
"""Standard deviation of the prior of log T, a normal distribution around 0, without
which fitting a few examples could raise the loss (`benchmarks/README.md`).
"""


class TemperatureFit:
    """Fits the temperature T that makes softmax(logits / T) the probability of the
    labels, from one batch of held-out examples after the other.

    T does not change the predicted class, only its confidence: T above 1 lowers it,
    below 1 raises it. A few examples move T only slightly away from 1; thousands move
    it to the maximum of their likelihood. T is from 0.05 to 20. It is 1 if all
    predictions are correct, when it has no lower bound, and if it does not help: each
    of 5 folds is scored with the T of the others, and the mean loss must fall by more
    than two standard errors.

    The negative log-likelihood is summed at 64 temperatures, between which a cubic
    spline is within 1e-4 of T.

    Args:
        width: Standard deviation of the prior of log T; infinite for no prior.
    """

    def __init__(self, width: float = _WIDTH) -> None:
        self._width = width
        self._exponents = np.linspace(np.log(_LOWEST), np.log(_HIGHEST), _TEMPERATURES)
        # Sums over the examples of a fold: losses, and how much they fall compared with
        # T = 1, and the squares of that.
        self._losses = np.zeros((_FOLDS, _TEMPERATURES))
        self._gains = np.zeros((_FOLDS, _TEMPERATURES))
        self._squares = np.zeros((_FOLDS, _TEMPERATURES))
        self._examples = 0
        self._has_mistake = False

    def update(self, logits: np.ndarray, labels: np.ndarray) -> None:
        """Adds logits, (batch, classes), and their labels, int (batch,)."""
        of_truth = logits[np.arange(len(labels)), labels]
        self._has_mistake |= bool((logits.max(axis=1) > of_truth).any())
        # At most 0, so that no exponential overflows.
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        truth = shifted[np.arange(len(labels)), labels]
        folds = (self._examples + np.arange(len(labels))) % _FOLDS
        self._examples += len(labels)

        def losses(scale: float) -> np.ndarray:
            return np.log(np.exp(shifted * scale).sum(axis=1)) - truth * scale

        def sums(values: np.ndarray) -> np.ndarray:
            return np.bincount(folds, weights=values, minlength=_FOLDS)

        unscaled = losses(1.0)
        for index, exponent in enumerate(self._exponents):
            scaled = losses(np.exp(-exponent))
            gains = unscaled - scaled
            self._losses[:, index] += sums(scaled)
            self._gains[:, index] += sums(gains)
            self._squares[:, index] += sums(gains**2)

    def result(self) -> float:
        """The temperature."""
        if not self._has_mistake or not self._helps():
            return 1.0
        return float(np.exp(self._best(self._losses.sum(axis=0))))

    def _helps(self) -> bool:
        """Whether the temperature of other folds lowers the loss of a fold."""
        total = self._losses.sum(axis=0)
        gain = square = 0.0
        for fold in range(_FOLDS):
            best = self._best(total - self._losses[fold])
            gain += float(CubicSpline(self._exponents, self._gains[fold])(best))
            square += float(CubicSpline(self._exponents, self._squares[fold])(best))
        mean = gain / self._examples
        variance = max(square / self._examples - mean**2, 0.0)
        return mean > _STANDARD_ERRORS * np.sqrt(variance / self._examples)

    def _best(self, losses: np.ndarray) -> float:
        """log T of the maximum of the posterior, from the sum of losses at each T."""
        posterior = losses + self._exponents**2 / (2 * self._width**2)
        # The loss is convex in 1 / T. With the prior there may be a second minimum if
        # all logits are tiny, when the network has learned nothing.
        lowest = int(posterior.argmin())
        curve = CubicSpline(self._exponents, posterior)
        first = self._exponents[max(lowest - 1, 0)]
        last = self._exponents[min(lowest + 1, _TEMPERATURES - 1)]
        best = minimize_scalar(
            curve, bounds=(first, last), method="bounded", options={"xatol": 1e-6}
        )
        return float(best.x)


class CalibrationError:
    """Mean loss, and calibration error, of softmax(logits / temperature).

    The error is the difference between accuracy and confidence, averaged over 15
    equally wide bins of confidence, weighted by their number of examples. 0 is best, 1
    is worst.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        self._temperature = temperature
        self._examples = 0
        self._loss = 0.0
        self._gaps = np.zeros(_BINS)

    def update(self, logits: np.ndarray, labels: np.ndarray) -> None:
        """Adds logits, (batch, classes), and their labels, int (batch,)."""
        scaled = logits / self._temperature
        total = logsumexp(scaled, axis=1)
        loss = total - scaled[np.arange(len(labels)), labels]
        confidence = np.exp(scaled.max(axis=1) - total).astype(np.float64)
        right = logits.argmax(axis=1) == labels
        self._examples += len(labels)
        self._loss += float(loss.astype(np.float64).sum())
        if not np.isfinite(confidence).all():
            self._gaps += np.nan
            return
        bins = _bins(confidence)
        self._gaps += np.bincount(bins, weights=right - confidence, minlength=_BINS)

    def result(self) -> dict[str, float]:
        """`loss` and `calibration_error`."""
        return {
            "loss": self._loss / self._examples,
            "calibration_error": float(np.abs(self._gaps).sum() / self._examples),
        }


class Reliability(NamedTuple):
    """A reliability diagram: arrays (15,), one entry for each bin of confidence."""

    confidence: np.ndarray
    """The mean confidence; 0 in an empty bin."""
    accuracy: np.ndarray
    """The share of right predictions; 0 in an empty bin."""
    examples: np.ndarray
    error: float
    """The calibration error, as of `CalibrationError`."""


def reliability(confidence: np.ndarray, correct: np.ndarray) -> Reliability:
    """The reliability diagram of predictions, from the probability of the predicted
    class, float (examples,), and whether it is right, bool (examples,).
    """
    confidence = np.nan_to_num(confidence.astype(np.float64))
    bins = _bins(confidence)
    examples = np.bincount(bins, minlength=_BINS)
    count = np.maximum(examples, 1)
    mean = np.bincount(bins, weights=confidence, minlength=_BINS) / count
    accuracy = np.bincount(bins, weights=correct, minlength=_BINS) / count
    gaps = np.abs(accuracy - mean) * examples
    return Reliability(mean, accuracy, examples, float(gaps.sum() / examples.sum()))


def _bins(confidence: np.ndarray) -> np.ndarray:
    """The bins of confidences; a bin includes its upper end: ((m - 1) / 15, m / 15]."""
    return np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)
