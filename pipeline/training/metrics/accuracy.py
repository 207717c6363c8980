"""The accuracy of a classifier, under Keras's names."""

import keras

from pipeline.config.registry import register
from pipeline.contracts import Metadata
from pipeline.utils.errors import UsageError


@register
def accuracy(metadata: Metadata) -> keras.metrics.Metric:
    """Fraction of the examples, of the labels or of the pixels whose prediction is
    right.

    Args:
        metadata: Metadata of a task with classes: `class_names`.
    """
    return _accuracy("accuracy", metadata)


@register
def acc(metadata: Metadata) -> keras.metrics.Metric:
    """The same as `accuracy`, reported as `acc`.

    Args:
        metadata: Metadata of a task with classes: `class_names`.
    """
    return _accuracy("acc", metadata)


def _accuracy(name: str, metadata: Metadata) -> keras.metrics.Metric:
    if "class_names" not in metadata:
        raise UsageError(
            f"--train.metrics: {name} is for classification only; remove it"
        )
    if metadata.get("activation") == "sigmoid":
        return keras.metrics.BinaryAccuracy(name=name, threshold=0.0)
    if len(metadata.get("output_shape", (1,))) > 1:
        return keras.metrics.SparseCategoricalAccuracy(name=name)
    return keras.metrics.CategoricalAccuracy(name=name)
