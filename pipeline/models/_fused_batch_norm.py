"""Batch normalization in one operation, with the weights and results of Keras's layer."""

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("pipeline")
class FusedBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` for images, as one operation of cuDNN or oneDNN.

    Keras's layer computes in several passes over memory, and casts 16-bit activations to float32.
    This one reads and writes them once. Parameters and statistics are float32 in every precision,
    and have the names and the order of Keras's, so weights can be exchanged in both directions.

    Takes (batch, height, width, channels). What the operation cannot do is left to Keras's layer:
    statistics over all replicas (`synchronized`), `renorm`, masks, other axes and dtypes.
    """

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """The normalized images, of the shape and dtype of `inputs`."""
        if mask is not None or not self._can_fuse(inputs):
            return super().call(inputs, training=training, mask=mask)
        training = bool(training and self.trainable)  # a frozen layer keeps its statistics
        channels = inputs.shape[-1]
        gamma = tf.cast(self.gamma, tf.float32) if self.scale else tf.ones([channels])
        beta = tf.cast(self.beta, tf.float32) if self.center else tf.zeros([channels])
        moving = (tf.cast(v, tf.float32) for v in (self.moving_mean, self.moving_variance))
        mean, variance = ([], []) if training else moving
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
        known = inputs.dtype in ("float32", "float16", "bfloat16")
        return is_last and known and not self.synchronized and not self.renorm


def fuse(model: keras.Model) -> None:
    """Makes each BatchNormalization of a model a fused one, with its variables as they are."""
    for layer in model._flatten_layers(include_self=False):
        if type(layer) is keras.layers.BatchNormalization:
            layer.__class__ = FusedBatchNormalization  # the two differ in `call` only


def with_stock_layers(model: keras.Model) -> keras.Model:
    """The model with Keras's own BatchNormalization, so that Keras loads it without this package.

    It is the same model if it has no fused layer, and otherwise a copy.
    """
    layers = model._flatten_layers(include_self=False)
    if not any(isinstance(layer, FusedBatchNormalization) for layer in layers):
        return model

    def stock(layer: keras.Layer) -> keras.Layer:
        is_fused = type(layer) is FusedBatchNormalization
        kind = keras.layers.BatchNormalization if is_fused else type(layer)
        return kind.from_config(layer.get_config())

    copy = keras.models.clone_model(model, clone_function=stock, recursive=True)
    copy.set_weights(model.get_weights())
    return copy
