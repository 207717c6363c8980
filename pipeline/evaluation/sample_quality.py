"""How good samples of a generative model are, next to real images.

The features are those of a classifier of the same images, so distances are comparable
only between models that the same classifier judges.
"""

import numpy as np

NEIGHBORS = 3
"""The neighbor whose distance is the radius of an image, as in Kynkaanniemi et al."""
_ROWS = 1024  # of a matrix of distances at a time


def frechet_distance(real: np.ndarray, samples: np.ndarray) -> float:
    """The Frechet distance of two normal distributions fitted to features (n, d).

    Dowson and Landau, "The Frechet distance between multivariate normal distributions",
    Journal of Multivariate Analysis 1982. Heusel et al., NIPS 2017, use it with the
    features of Inception.
    """
    means = real.mean(axis=0), samples.mean(axis=0)
    covariances = [np.atleast_2d(np.cov(x, rowvar=False)) for x in (real, samples)]
    # The trace of sqrt(A B) is that of sqrt(sqrt(A) B sqrt(A)), which is symmetric.
    root = _root(covariances[0])
    product = np.linalg.eigvalsh(root @ covariances[1] @ root)
    trace = np.trace(covariances[0]) + np.trace(covariances[1])
    trace -= 2 * np.sqrt(product.clip(0)).sum()
    return float(((means[0] - means[1]) ** 2).sum() + trace)


def _root(matrix: np.ndarray) -> np.ndarray:
    """The root of a symmetric matrix without negative eigenvalues."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(values.clip(0))) @ vectors.T


def spread(length: int, count: int) -> np.ndarray:
    """Evenly spaced positions from 0 to `length` - 1, int64 (count,)."""
    return np.arange(count) * length // count


def precision_and_recall(
    real: np.ndarray, samples: np.ndarray, neighbors: int = NEIGHBORS
) -> tuple[float, float]:
    """The share of samples that are as near to a real image as its neighbors are, and
    the share of real images that are as near to a sample: quality and diversity.

    Kynkaanniemi et al., "Improved precision and recall metric for assessing generative
    models", NeurIPS 2019, for features (n, d) of as many real images as samples.
    """
    return _covered(real, samples, neighbors), _covered(samples, real, neighbors)


def _covered(reference: np.ndarray, points: np.ndarray, neighbors: int) -> float:
    """The share of points within the radius of any point of the reference."""
    count = min(neighbors, len(reference) - 1)
    radii = []
    for start in range(0, len(reference), _ROWS):
        distances = _squares(reference[start : start + _ROWS], reference)
        radii.append(np.partition(distances, count, axis=1)[:, count])  # 0 is itself
    radius = np.concatenate(radii)
    inside = 0
    for start in range(0, len(points), _ROWS):
        distances = _squares(points[start : start + _ROWS], reference)
        inside += int((distances <= radius).any(axis=1).sum())
    return inside / len(points)


def _squares(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squares of the distances between all rows of two matrices."""
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2 * (a @ b.T)
    return squares.clip(0)


class Nearest:
    """The nearest of many images to each of some images, by the pixels.

    `images` are uint8 (n, height, width, channels).
    """

    def __init__(self, images: np.ndarray) -> None:
        self._pixels = images.reshape(len(images), -1).astype(np.float32)
        self.squares = np.full(len(images), np.inf, np.float32)
        """Square of the distance to the nearest image so far."""
        self.images = images.copy()
        """The nearest images so far."""

    def add(self, images: np.ndarray) -> None:
        """Compares with further images, whose number may be large."""
        others = images.reshape(len(images), -1).astype(np.float32)
        for start in range(0, len(self._pixels), _ROWS):
            rows = slice(start, start + _ROWS)
            squares = _squares(self._pixels[rows], others)
            best = squares.argmin(axis=1)
            lowest = squares[np.arange(len(best)), best]
            is_nearer = lowest < self.squares[rows]
            self.squares[rows] = np.where(is_nearer, lowest, self.squares[rows])
            self.images[rows][is_nearer] = images[best[is_nearer]]


def share_nearer(a: np.ndarray, b: np.ndarray) -> float:
    """The probability that a number of `a` is less than one of `b`; ties count half."""
    order = np.sort(b)
    greater = len(b) - np.searchsorted(order, a, "right")
    not_less = len(b) - np.searchsorted(order, a, "left")
    return float((greater + not_less).sum() / (2 * len(a) * len(b)))
