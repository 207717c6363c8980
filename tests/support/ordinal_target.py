"""A target outside the package: classes with an order, as cumulative logits."""

import keras
import numpy as np
import tensorflow as tf

from pipeline.contracts import Evaluator, Info, Target


def ordinal(info, *, field: str = "label") -> Target:
    """Classes in the order of their names."""
    if not isinstance(info, Info):
        return Ordinal(info)
    info.field(field)
    return Ordinal({"target_field": field, "levels": list(info.class_names)})


class Ordinal(Target):
    selection_metric = ("distance", -1)

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
        def loss(y, outputs):
            losses = tf.nn.sigmoid_cross_entropy_with_logits(y, outputs)
            return tf.reduce_mean(losses, axis=-1)

        return loss

    def predict(self, outputs, batch):
        level = tf.reduce_sum(tf.cast(outputs > 0, tf.int32), axis=-1)
        return {"level": level, "name": tf.gather(tf.constant(self.levels), level)}

    def draw(self, axes, example, prediction):
        axes.set_title(prediction["name"].decode())

    def evaluator(self, model=None):
        return Distance()


class Distance(Evaluator):
    def __init__(self):
        self.losses, self.distances = [], []

    def update(self, outputs, predictions, batch):
        self.losses.append(predictions["loss"].numpy())
        distance = predictions["level"].numpy() - batch["level"].numpy()
        self.distances.append(np.abs(distance))

    def result(self):
        losses = np.concatenate(self.losses)
        distances = np.concatenate(self.distances)
        return {
            "examples": len(losses),
            "loss": float(losses.mean()),
            "distance": float(distances.mean()),
            "accuracy": float((distances == 0).mean()),
        }
