"""A source whose images and labels lie in memory, shared by the siblings that read such data."""

import numpy as np
import tensorflow as tf

from pipeline.contracts import Info, Source


class ArraySource(Source):
    """One split `train`; the id of an example is its position.

    Args:
        images: uint8, (n, height, width, channels).
        labels: Whole numbers, (n,).
        class_names: Names of the labels 0, 1, ...
    """

    def __init__(
        self, images: np.ndarray, labels: np.ndarray, class_names: tuple[str, ...]
    ) -> None:
        self._columns = {
            "id": np.arange(len(images), dtype=np.int64),
            "image": images,
            "label": labels.astype(np.int64),
        }
        self.info = Info(
            splits={"train": len(images)},
            fields={k: tf.TensorSpec(v.shape[1:], v.dtype) for k, v in self._columns.items()},
            class_names=class_names,
        )

    def examples(self, split: str) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self._columns)
