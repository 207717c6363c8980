"""The mean recall over all classes."""

from typing import Any

import keras
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Metadata
from pipeline.utils.errors import UsageError


@register
def macro_recall(metadata: Metadata) -> keras.metrics.Metric:
    """Recall of each class, averaged over the classes that have examples (balanced
    accuracy).

    Args:
        metadata: Metadata of a classification task: `class_names`.
    """
    is_softmax = metadata.get("activation", "softmax") == "softmax"
    is_map = len(metadata.get("output_shape", (1,))) > 1
    if "class_names" not in metadata or not is_softmax or is_map:
        raise UsageError(
            "--train.metrics: macro_recall is for classification only; remove it"
        )
    metric = _MacroRecall(name="macro_recall")
    shape = (None, len(metadata["class_names"]))
    metric._build(shape, shape)  # not within a trace
    return metric


class _MacroRecall(keras.metrics.F1Score):
    """Uses the true positives and false negatives that Keras's F1 counts per class."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        classes = y_pred.shape[-1]
        truth = tf.one_hot(tf.argmax(y_true, axis=-1), classes)
        predictions = tf.one_hot(tf.argmax(y_pred, axis=-1), classes)
        super().update_state(truth, predictions, sample_weight)

    def result(self) -> tf.Tensor:
        right = tf.convert_to_tensor(self.true_positives)
        examples = right + tf.convert_to_tensor(self.false_negatives)
        present = tf.reduce_sum(tf.cast(examples > 0, tf.float32))
        recalls = tf.math.divide_no_nan(right, examples)
        return tf.math.divide_no_nan(tf.reduce_sum(recalls), present)
