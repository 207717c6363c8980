"""Batch normalization in a single operation, with the results of Keras's layer."""

from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from pipeline.layers.nested import all_layers


class FusedBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` for images, as an operation of cuDNN or oneDNN.

    Keras's layer computes in several passes over memory, and casts 16-bit activations
    to float32. This layer reads and writes them once. Parameters and statistics are
    float32 in every precision, with the names and the order of Keras's layer, so
    weights can be exchanged in both directions.

    Takes (batch, height, width, channels). Calls Keras's layer for everything that the
    operation lacks: statistics over all replicas (`synchronized`), `renorm`, masks,
    other axes and dtypes, and fixed statistics with deterministic operations, for which
    cuDNN has no gradient.

    Saved files name Keras's layer instead of this one, so Keras loads them without this
    package.
    """

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Normalizes images; the result has the shape and dtype of `inputs`."""
        # A frozen layer keeps its statistics.
        training = bool(training and self.trainable)
        has_gradient = training or not is_op_determinism_enabled()
        if mask is not None or not has_gradient or not self._can_fuse(inputs):
            return super().call(inputs, training=training, mask=mask)
        channels = inputs.shape[-1]
        gamma = tf.cast(self.gamma, tf.float32) if self.scale else tf.ones([channels])
        beta = tf.cast(self.beta, tf.float32) if self.center else tf.zeros([channels])
        mean: Any = []
        variance: Any = []
        if not training:
            mean = tf.cast(self.moving_mean, tf.float32)
            variance = tf.cast(self.moving_variance, tf.float32)
        outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=gamma,
            offset=beta,
            mean=mean,
            variance=variance,
            epsilon=self.epsilon,
            is_training=training,
        )
        if training:
            count = tf.cast(tf.size(inputs) // channels, tf.float32)
            # The operation divides by count - 1, Keras by count.
            variance *= tf.maximum(count - 1, 1) / count
            pairs = ((self.moving_mean, mean), (self.moving_variance, variance))
            for average, value in pairs:
                value = tf.cast(value, average.dtype)
                average.assign(average * self.momentum + value * (1 - self.momentum))
        return outputs

    def _can_fuse(self, inputs: Any) -> bool:
        is_last = self.axis in (-1, 3) and len(inputs.shape) == 4
        is_float = inputs.dtype in ("float32", "float16", "bfloat16")
        return is_last and is_float and not self.synchronized and not self.renorm


# Keras saves a layer, and names its weights, by the module and the name of its class.
FusedBatchNormalization.__module__ = "keras.layers"
FusedBatchNormalization.__name__ = "BatchNormalization"


def fuse(model: keras.Model) -> int:
    """Replaces every BatchNormalization of a model by a fused layer with its variables.

    Returns the number of fused layers.
    """
    kinds = (keras.layers.BatchNormalization, FusedBatchNormalization)
    layers = all_layers(model)
    normalizations = [layer for layer in layers if type(layer) in kinds]
    for layer in normalizations:
        layer.__class__ = FusedBatchNormalization  # the two differ in `call` only
    return len(normalizations)
