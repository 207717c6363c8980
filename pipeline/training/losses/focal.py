"""Focal loss for classification."""

from collections.abc import Callable
from typing import Annotated

import tensorflow as tf

from pipeline.contracts import Metadata
from pipeline.tasks._metrics import is_mixed
from pipeline.utils.errors import UsageError


def focal(
    metadata: Metadata, *, gamma: Annotated[float, (0, 10)] = 2.0
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Cross-entropy times (1 - p) ** gamma, which reduces the weight of easy examples.

    Lin et al., "Focal loss for dense object detection", ICCV 2017, equation 4, for several classes.

    Args:
        metadata: Metadata of a classification task: `class_names`.
        gamma: Focusing parameter; 0 is cross-entropy.
    """
    if "class_names" not in metadata:
        raise UsageError("--train.loss focal is for classification only; remove it")
    classes = len(metadata["class_names"])

    def loss(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        shares = y if is_mixed(y) else tf.one_hot(y, classes)
        log_p = tf.nn.log_softmax(tf.cast(outputs, tf.float32))
        # 1 - p, but never 0, where the derivative of a power below 1 is infinite.
        wrong = tf.maximum(-tf.math.expm1(log_p), 1e-7)
        return -tf.reduce_sum(shares * wrong**gamma * log_p, axis=-1)

    return loss
