"""Gradient clipping: by global norm, by norm, or by value."""

import tensorflow as tf

from pipeline.config import config


def clip_gradients(
    options: config.TrainConfig,
    gradients: list[tf.Tensor],
    norm: tf.Tensor,
) -> list[tf.Tensor]:
    """Clips gradients whose global norm is `norm`.

    The options contain at most one rule.
    """
    if options.global_clipnorm is not None:
        # One factor for all: Pascanu, Mikolov, Bengio, "On the difficulty of training
        # recurrent neural networks", 2013, algorithm 1.
        factor = tf.minimum(1.0, options.global_clipnorm / tf.maximum(norm, 1e-30))
        return [gradient * factor for gradient in gradients]
    if options.clipnorm is not None:
        limit = options.clipnorm
        return [tf.clip_by_norm(gradient, limit) for gradient in gradients]
    if options.clipvalue is not None:
        limit = options.clipvalue
        return [tf.clip_by_value(gradient, -limit, limit) for gradient in gradients]
    return gradients
