"""Top-k accuracy of a classification."""

from typing import Annotated, Any

import keras
import tensorflow as tf

from pipeline.contracts import Metadata
from pipeline.utils.errors import UsageError


def top_k_accuracy(metadata: Metadata, *, k: Annotated[int, (1, None)] = 5) -> keras.metrics.Metric:
    """Share of the examples whose label is among the k most probable classes.

    Args:
        metadata: Of a classification task: `class_names`.
        k: Number of classes that count as an answer.
    """
    if "class_names" not in metadata:
        raise UsageError("--train.metrics: top_k_accuracy is for classification only; remove it")
    if k >= len(metadata["class_names"]):
        raise UsageError(
            f"--train.metrics: top_k_accuracy k={k} is always 1 with "
            f"{len(metadata['class_names'])} classes; give a smaller k"
        )
    return _TopK(k, name=f"top_{k}_accuracy")


class _TopK(keras.metrics.SparseTopKCategoricalAccuracy):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        mixed = len(y_true.shape) == 2  # shares of two classes, after mixup and cutmix
        label = tf.argmax(y_true, axis=-1) if mixed else y_true
        super().update_state(label, y_pred, sample_weight)
