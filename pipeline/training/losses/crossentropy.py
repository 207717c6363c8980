"""The cross-entropy of a classifier, under Keras's names."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Metadata
from pipeline.utils.errors import UsageError

Loss = Callable[[Any, Any], tf.Tensor]


@register
def crossentropy(metadata: Metadata) -> Loss:
    """Cross-entropy of labels and softmax, as `categorical_crossentropy`.

    Args:
        metadata: Metadata of a classification task: `class_names`.
    """
    return _crossentropy("crossentropy", metadata)


@register
def ce(metadata: Metadata) -> Loss:
    """The same as `crossentropy`.

    Args:
        metadata: Metadata of a classification task: `class_names`.
    """
    return _crossentropy("ce", metadata)


def _crossentropy(name: str, metadata: Metadata) -> Loss:
    is_softmax = metadata.get("activation", "softmax") == "softmax"
    is_map = len(metadata.get("output_shape", (1,))) > 1
    if metadata.get("target") == "mask":
        loss = "sparse_categorical_crossentropy"
        raise UsageError(f"--train.loss {name} is not for masks; write {loss}")
    if "class_names" not in metadata or not is_softmax or is_map:
        raise UsageError(f"--train.loss {name} is for classification only; remove it")
    return keras.losses.CategoricalCrossentropy(from_logits=True, reduction=None)
