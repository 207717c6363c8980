"""The classifier that judges the samples of a generative model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from pipeline.utils import safe_io
from pipeline.utils.errors import UsageError, reason

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
