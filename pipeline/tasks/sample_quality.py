"""How good samples of a generative model are, next to real images.

The features are those of a classifier of the same images, so distances are comparable
only between models that the same classifier judges.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from pipeline.utils import safe_io
from pipeline.utils.errors import UsageError, reason

NEIGHBORS = 3
"""The neighbor whose distance is the radius of an image, as in Kynkaanniemi et al."""
_ROWS = 1024  # of a matrix of distances at a time
_BATCH = 512  # images that the judge sees at once


class Judge:
    """A classifier of a finished run: from uint8 images to features and classes.

    Raises UsageError if its network cannot be loaded.
    """

    def __init__(self, run: Path, class_names: Sequence[str]) -> None:
        names = _metadata(run)["class_names"]
        self._numbers = np.array([class_names.index(name) for name in names])
        try:
            plain = keras.models.load_model(run / "model.keras", compile=False)
            network = plain.get_layer("network")
            features = network.get_layer("logits").input
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"judge {run} cannot be loaded: {reason(error)}") from None
        self._prepare = plain.get_layer("pixels")
        self._network = keras.Model(network.inputs, [features, network.outputs[0]])

    def __call__(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The features, float64 (images, n), and the number of the class of each."""
        parts = []
        classes = []
        for start in range(0, len(images), _BATCH):
            inputs = self._prepare(images[start : start + _BATCH])
            features, logits = self._network(inputs, training=False)
            parts.append(np.asarray(features, np.float64))
            classes.append(np.argmax(logits, axis=-1))
        return np.concatenate(parts), self._numbers[np.concatenate(classes)]


def check_judge(run: Path, class_names: Sequence[str], shape: Sequence[int]) -> None:
    """Raises UsageError unless a run is finished and classifies these images, and its
    network can be used.
    """
    metadata = _metadata(run)
    names = metadata.get("class_names") or ()
    if metadata.get("target") != "classes" or set(names) != set(class_names):
        raise UsageError(
            f"judge {run} must be a run that classifies {', '.join(class_names)[:200]}"
        )
    if list(metadata.get("image_shape", ())) != list(shape):
        size = " ".join(map(str, shape[:2]))
        raise UsageError(
            f"judge {run} takes images of shape {metadata.get('image_shape')}, not"
            f" {list(shape)}; train one with --data.image-size {size}"
        )
    if metadata.get("raw"):
        raise UsageError(
            f"judge {run} has a Keras model of your own, whose features are not known;"
            " train one with --model.name convnet"
        )
    Judge(run, class_names)


def _metadata(run: Path) -> dict[str, Any]:
    try:
        metadata = safe_io.read_json(run / "metadata.json")
    except (OSError, ValueError):
        metadata = {}
    if not metadata or not (run / "model.keras").is_file():
        raise UsageError(
            f"judge {run} is not a finished run, such as runs/digits-1, with its"
            " model.keras; --task.judge RUN is another, and None is none"
        )
    return metadata


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
