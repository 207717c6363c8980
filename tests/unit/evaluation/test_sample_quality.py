"""Frechet distance, precision, recall and nearest images, by their definitions."""

import numpy as np
import pytest
import scipy.linalg

from pipeline.evaluation import sample_quality as quality


def test_the_frechet_distance_is_that_of_scipy():
    generator = np.random.default_rng(0)
    real = generator.normal(size=(500, 6)) @ generator.normal(size=(6, 6))
    samples = 1.5 * generator.normal(size=(300, 6)) + 0.3
    a, b = np.cov(real, rowvar=False), np.cov(samples, rowvar=False)
    expected = ((real.mean(0) - samples.mean(0)) ** 2).sum() + np.trace(
        a + b - 2 * scipy.linalg.sqrtm(a @ b).real
    )
    assert quality.frechet_distance(real, samples) == pytest.approx(expected, rel=1e-9)
    assert quality.frechet_distance(real, real) == pytest.approx(0, abs=1e-6)
    # Fewer images than features: the covariance is singular.
    few = quality.frechet_distance(real[:4], samples[:4])
    assert np.isfinite(few) and few > 0


def test_precision_and_recall_of_points():
    """Real points on a line at 0, 1, ..., 9; samples cover its first half, and one is
    far away.
    """
    real = np.arange(10.0)[:, None]
    samples = np.array([0.1, 1.1, 2.1, 3.1, 4.1, 50.0])[:, None]
    precision, recall = quality.precision_and_recall(real[:6], samples, neighbors=1)
    assert precision == 5 / 6
    # The radius of the sample at 50 reaches from 4.1 to 95.9.
    assert recall == 1.0
    precision, recall = quality.precision_and_recall(real, samples[:5], neighbors=1)
    assert precision == 1.0
    assert recall == 6 / 10  # 5 is 0.9 from 4.1, whose radius is 1
    assert quality.share_nearer(np.array([1.0, 3.0]), np.array([2.0, 3.0])) == 0.625


def test_the_nearest_images_are_found_in_pieces():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (40, 3, 3, 1), np.uint8)
    training = generator.integers(0, 256, (100, 3, 3, 1), np.uint8)
    training[70] = images[13]
    nearest = quality.Nearest(images)
    for start in range(0, 100, 30):
        nearest.add(training[start : start + 30])
    pixels = images.reshape(40, 1, 9).astype(float) - training.reshape(1, 100, 9)
    squares = (pixels**2).sum(axis=2)
    np.testing.assert_allclose(nearest.squares, squares.min(axis=1), rtol=1e-4, atol=1)
    np.testing.assert_array_equal(nearest.images, training[squares.argmin(axis=1)])
    assert nearest.squares[13] == pytest.approx(0, abs=1)
