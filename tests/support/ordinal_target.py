"""A target outside the package: classes with an order, as cumulative logits."""

import keras
import tensorflow as tf

from pipeline.contracts import Info, Target
from pipeline.report.target_report import TargetReport


def ordinal(info, *, field: str = "label") -> Target:
    """Classes in the order of their names."""
    if not isinstance(info, Info):
        return Ordinal(info)
    info.field(field)
    return Ordinal({"target_field": field, "levels": list(info.class_names)})


class OrdinalReport(TargetReport):
    def draw(self, axes, example, prediction):
        axes.set_title(prediction["name"].decode())


class Ordinal(Target):
    selection_metric = ("distance", -1)
    report = OrdinalReport

    def __init__(self, metadata):
        super().__init__(metadata)
        self.levels = metadata["levels"]

    def decode(self, example, geometry):
        return {"level": tf.cast(example[self.metadata["target_field"]], tf.int64)}

    def y(self, batch):
        """1 for each level that is exceeded, float32 (batch, levels - 1)."""
        steps = tf.range(len(self.levels) - 1, dtype=tf.int64)
        return tf.cast(batch["level"][:, None] > steps, tf.float32)

    def head(self, features, mask=None):
        return keras.layers.Dense(len(self.levels) - 1, dtype="float32")(features)

    def loss(self):
        return keras.losses.BinaryCrossentropy(from_logits=True, reduction=None)

    def metrics(self):
        return [keras.metrics.MeanMetricWrapper(distance, name="distance")]

    def predict(self, outputs, batch):
        level = tf.reduce_sum(tf.cast(outputs > 0, tf.int32), axis=-1)
        names = tf.gather(tf.constant(self.levels), level)
        return {"logits": outputs, "level": level, "name": names}

    def outputs_of(self, predictions):
        return predictions["logits"]


def distance(y, outputs):
    """By how many levels a prediction is wrong."""
    levels = tf.reduce_sum(tf.cast(outputs > 0, tf.float32), axis=-1)
    return tf.abs(levels - tf.reduce_sum(y, axis=-1))
