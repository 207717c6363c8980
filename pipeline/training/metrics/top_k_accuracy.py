"""Top-k accuracy of a classification."""

from typing import Annotated, Any

import keras

from pipeline.contracts import Metadata
from pipeline.tasks._metrics import labels
from pipeline.utils.errors import UsageError


def top_k_accuracy(metadata: Metadata, *, k: Annotated[int, (1, None)] = 5) -> keras.metrics.Metric:
    """Fraction of the examples whose label is among the k most probable classes.

    Args:
        metadata: Metadata of a classification task: `class_names`.
        k: Number of classes.
    """
    if "class_names" not in metadata:
        raise UsageError("--train.metrics: top_k_accuracy is for classification only; remove it")
    classes = len(metadata["class_names"])
    if k >= classes:
        raise UsageError(
            f"--train.metrics: top_k_accuracy k={k} is always 1 with {classes} classes; "
            "choose a smaller k"
        )
    return _TopK(k, name=f"top_{k}_accuracy")


class _TopK(keras.metrics.SparseTopKCategoricalAccuracy):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(labels(y_true), y_pred, sample_weight)
