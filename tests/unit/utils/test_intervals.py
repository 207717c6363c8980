"""Confidence intervals of shares."""

import numpy as np
import pytest
from scipy.stats import binomtest

from pipeline.utils.intervals import wilson


@pytest.mark.parametrize(("right", "total"), [(0, 10), (5, 10), (10, 10), (97, 100)])
def test_the_interval_is_that_of_scipy(right, total):
    expected = binomtest(right, total).proportion_ci(method="wilson")
    low, high = wilson(np.array(right), np.array(total))
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_nothing_is_known_without_examples():
    low, high = wilson(np.array([0, 1]), np.array([0, 2]))
    assert (low[0], high[0]) == (0, 1) and low[1] < 0.5 < high[1]
