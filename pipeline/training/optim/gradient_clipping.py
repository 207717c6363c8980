"""Gradient clipping: by global norm, by norm, by value, or adaptively."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from pipeline.config import config


def clip_gradients(
    options: config.TrainConfig,
    gradients: list[tf.Tensor],
    norm: tf.Tensor,
    variables: Sequence[keras.Variable],
) -> list[tf.Tensor]:
    """Clips the gradients of `variables`, whose global norm is `norm`.

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
    if options.clip_adaptive is not None:
        weights = [variable.value for variable in variables]
        return clip_adaptively(gradients, options.clip_adaptive, weights)
    return gradients


def clip_adaptively(
    gradients: list[tf.Tensor], limit: float, variables: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Scales each unit's gradient to at most `limit` times the norm of the unit's
    weights.

    Brock, De, Smith, Simonyan, "High-performance large-scale image recognition without
    normalization", 2021, equation 3, with the paper's minimum of 0.001 for the norm of
    the weights. A unit is an output channel (the last axis); in a bias or scale, each
    number is a unit.
    """
    clipped = []
    for gradient, variable in zip(gradients, variables, strict=True):
        norm = _unit_norm(gradient)
        bound = limit * tf.maximum(_unit_norm(tf.convert_to_tensor(variable)), 1e-3)
        clipped.append(gradient * tf.minimum(1.0, bound / tf.maximum(norm, 1e-30)))
    return clipped


def _unit_norm(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the norm of each unit; all axes but the last have length 1."""
    axes = list(range(len(tensor.shape) - 1))
    return tf.sqrt(tf.reduce_sum(tf.square(tensor), axis=axes, keepdims=True))
