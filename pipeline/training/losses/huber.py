"""Huber loss for regression."""

from collections.abc import Callable
from typing import Annotated

import keras
import tensorflow as tf

from pipeline.contracts import Metadata
from pipeline.utils.errors import UsageError


def huber(
    metadata: Metadata, *, delta: Annotated[float, "positive"] = 1.0
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Quadratic for small errors, linear for large ones.

    Huber, "Robust estimation of a location parameter", Annals of Mathematical Statistics 1964.

    Args:
        metadata: Metadata of a regression task.
        delta: Size of the error at which the loss becomes linear, in units of the target.
    """
    if "class_names" in metadata:
        raise UsageError("--train.loss huber is for regression only; remove it")
    return keras.losses.Huber(delta=delta, reduction=None)
