"""The accuracy of a classifier, under Keras's names."""

import keras

from pipeline.contracts import Metadata
from pipeline.utils.errors import UsageError


def accuracy(metadata: Metadata) -> keras.metrics.Metric:
    """Fraction of the examples whose answer is the label; reported in any case.

    Args:
        metadata: Metadata of a classification task: `class_names`.
    """
    return _accuracy("accuracy", metadata)


def acc(metadata: Metadata) -> keras.metrics.Metric:
    """The same as `accuracy`, reported as `acc`.

    Args:
        metadata: Metadata of a classification task: `class_names`.
    """
    return _accuracy("acc", metadata)


def _accuracy(name: str, metadata: Metadata) -> keras.metrics.Metric:
    if "class_names" not in metadata:
        raise UsageError(
            f"--train.metrics: {name} is for classification only; remove it"
        )
    return keras.metrics.CategoricalAccuracy(name=name)
