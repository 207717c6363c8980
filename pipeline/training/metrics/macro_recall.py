"""The mean recall over all classes."""

from typing import Any

import keras
import tensorflow as tf

from pipeline.contracts import Metadata
from pipeline.utils.errors import UsageError


def macro_recall(metadata: Metadata) -> keras.metrics.Metric:
    """Recall of each class, averaged over the classes that have examples (balanced
    accuracy).

    Args:
        metadata: Metadata of a classification task: `class_names`.
    """
    if "class_names" not in metadata:
        raise UsageError(
            "--train.metrics: macro_recall is for classification only; remove it"
        )
    found, shape = (
        _MacroRecall(name="macro_recall"),
        (None, len(metadata["class_names"])),
    )
    found._build(shape, shape)  # not within a trace
    return found


class _MacroRecall(keras.metrics.F1Score):
    """Keras's F1 counts what it needs: true positives and false negatives of each
    class.
    """

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        classes = y_pred.shape[-1]
        truth = tf.one_hot(tf.argmax(y_true, axis=-1), classes)
        answers = tf.one_hot(tf.argmax(y_pred, axis=-1), classes)
        super().update_state(truth, answers, sample_weight)

    def result(self) -> tf.Tensor:
        right = tf.convert_to_tensor(self.true_positives)
        examples = right + tf.convert_to_tensor(self.false_negatives)
        present = tf.reduce_sum(tf.cast(examples > 0, tf.float32))
        return tf.math.divide_no_nan(
            tf.reduce_sum(tf.math.divide_no_nan(right, examples)), present
        )
