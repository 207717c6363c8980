"""The mean recall over all classes."""

from typing import Any

import keras
import tensorflow as tf

from pipeline.contracts import Metadata
from pipeline.tasks._metrics import labels
from pipeline.utils.errors import UsageError


def macro_recall(metadata: Metadata) -> keras.metrics.Metric:
    """Recall of each class, averaged over the classes that have examples (balanced accuracy).

    Args:
        metadata: Metadata of a classification task: `class_names`.
    """
    if "class_names" not in metadata:
        raise UsageError("--train.metrics: macro_recall is for classification only; remove it")
    return _MacroRecall(len(metadata["class_names"]), name="macro_recall")


class _MacroRecall(keras.metrics.Metric):
    def __init__(self, classes: int, **options: Any) -> None:
        super().__init__(**options)
        self.classes = classes
        self.right = self.add_weight(shape=(classes,), initializer="zeros", name="right")
        self.count = self.add_weight(shape=(classes,), initializer="zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        label = tf.cast(labels(y_true), tf.int64)
        weight = tf.ones(tf.shape(label)) if sample_weight is None else sample_weight
        right = tf.cast(label == tf.argmax(y_pred, axis=-1), tf.float32)
        of_class = tf.one_hot(label, self.classes) * tf.cast(weight, tf.float32)[:, None]
        self.right.assign_add(tf.reduce_sum(of_class * right[:, None], axis=0))
        self.count.assign_add(tf.reduce_sum(of_class, axis=0))

    def result(self) -> tf.Tensor:
        count = tf.convert_to_tensor(self.count)
        recall = tf.math.divide_no_nan(tf.convert_to_tensor(self.right), count)
        return tf.math.divide_no_nan(
            tf.reduce_sum(recall), tf.reduce_sum(tf.cast(count > 0, tf.float32))
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "classes": self.classes}
