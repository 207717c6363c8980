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
        self.counts = self.add_weight(shape=(classes, classes), initializer="zeros", name="counts")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        answers, shape = tf.argmax(y_pred, axis=-1), self.classes
        counts = tf.math.confusion_matrix(
            labels(y_true), answers, shape, weights=sample_weight, dtype=tf.float32
        )
        self.counts.assign_add(counts)

    def result(self) -> tf.Tensor:
        counts = tf.convert_to_tensor(self.counts)
        examples = tf.reduce_sum(counts, axis=1)
        recall = tf.math.divide_no_nan(tf.linalg.diag_part(counts), examples)
        found = tf.cast(examples > 0, tf.float32)
        return tf.math.divide_no_nan(tf.reduce_sum(recall), tf.reduce_sum(found))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "classes": self.classes}
