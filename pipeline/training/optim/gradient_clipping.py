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
    if options.clip_norm is not None:
        # One factor for all: Pascanu, Mikolov, Bengio, "On the difficulty of training
        # recurrent neural networks", 2013, algorithm 1.
        factor = tf.minimum(1.0, options.clip_norm / tf.maximum(norm, 1e-30))
        return [gradient * factor for gradient in gradients]
    if options.clip_variable_norm is not None:
        limit = options.clip_variable_norm
        return [tf.clip_by_norm(gradient, limit) for gradient in gradients]
    if options.clip_value is not None:
        limit = options.clip_value
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
