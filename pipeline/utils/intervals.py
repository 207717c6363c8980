"""Confidence intervals of shares."""

import numpy as np

_QUANTILE = 1.959963984540054  # of the normal distribution, for 95 %


def wilson(right: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % interval of a share, lower and upper end, from counts of any one shape.

    It is 0 to 1 where the total is 0. Unlike the normal approximation, it holds for few
    examples and for shares near 0 and 1. Wilson, "Probable inference, the law of
    succession, and statistical inference", JASA 1927.
    """
    total = np.asarray(total, np.float64)
    counts = np.maximum(total, 1)
    share = np.asarray(right, np.float64) / counts
    square = _QUANTILE**2
    scale = 1 + square / counts
    center = (share + square / (2 * counts)) / scale
    variance = share * (1 - share) / counts + square / (4 * counts**2)
    half = _QUANTILE * np.sqrt(variance) / scale
    low = np.where(total > 0, np.maximum(center - half, 0), 0)
    high = np.where(total > 0, np.minimum(center + half, 1), 1)
    return low, high
