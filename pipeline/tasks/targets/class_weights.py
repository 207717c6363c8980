"""Class weights: their keys, and the loss of weighted and smoothed labels."""

import re
from collections.abc import Mapping, Sequence

import tensorflow as tf

from pipeline.utils.errors import UsageError, suggest

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)


def weights_by_name(
    class_weight: Mapping[str, float], class_names: Sequence[str]
) -> dict[str, float]:
    """Converts class weights to weights by the names of the classes.

    The keys are names of classes, or their numbers (`0`), unless a name is a number
    itself. Raises UsageError for other keys.
    """
    by_number = {str(number): name for number, name in enumerate(class_names)}
    if any(map(_NUMBER.fullmatch, class_names)):
        by_number = {}
    weights = {}
    for key, weight in class_weight.items():
        name = key if key in class_names else by_number.get(key)
        if name is None:
            raise UsageError(
                f"--train.class-weight: unknown class {key!r};"
                f" {suggest(key, class_names)}"
            )
        if name in weights:
            raise UsageError(f"--train.class-weight names the class {name!r} twice")
        weights[name] = weight
    return weights


def crossentropy(
    y: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor, label_smoothing: float
) -> tf.Tensor:
    """Computes the weighted cross-entropy with smoothed labels, (batch,).

    Args:
        y: The share of each class, float32 (batch, classes).
        outputs: Logits, (batch, classes).
        weights: The weight of each class, float32 (classes,).
        label_smoothing: The share that is distributed evenly among all classes.
    """
    weighted = y * weights
    total = tf.reduce_sum(weighted, axis=-1, keepdims=True)
    uniform = total * label_smoothing / y.shape[-1]
    smoothed = weighted * (1.0 - label_smoothing) + uniform
    # Not TensorFlow's own cross-entropy, which assumes that labels sum to 1.
    return -tf.reduce_sum(smoothed * tf.nn.log_softmax(outputs), axis=-1)
