"""The cross-entropy of a classifier, under Keras's names."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Metadata
from pipeline.data.mask_files import IGNORED
from pipeline.utils.errors import UsageError

Loss = Callable[[Any, Any], tf.Tensor]


@register
def crossentropy(metadata: Metadata) -> Loss:
    """Cross-entropy of labels and softmax, as `categorical_crossentropy`; of masks,
    that of the pixels that have a class.

    Args:
        metadata: Metadata of a task with `class_names`.
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
        return _crossentropy_of_pixels
    if "class_names" not in metadata or not is_softmax or is_map:
        raise UsageError(f"--train.loss {name} is for classification only; remove it")
    return keras.losses.CategoricalCrossentropy(from_logits=True, reduction=None)


def _crossentropy_of_pixels(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """The mean of the pixels that have a class, (batch,); 0 if there are none."""
    counts = tf.cast(y != IGNORED, tf.float32)
    losses = keras.losses.sparse_categorical_crossentropy(
        y, tf.cast(outputs, tf.float32), from_logits=True, ignore_class=IGNORED
    )
    total = tf.reduce_sum(losses, axis=(1, 2))  # 0 where there is no class
    return total / tf.maximum(tf.reduce_sum(counts, axis=(1, 2)), 1.0)
