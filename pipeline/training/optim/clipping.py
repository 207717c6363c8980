"""Four ways to bound a gradient before the update; given one that is summed over all replicas."""

import tensorflow as tf


def by_global_norm(
    gradients: list[tf.Tensor], norm: tf.Tensor, limit: float, variables: list[tf.Tensor]
) -> list[tf.Tensor]:
    """All scaled by one factor, so that their joint norm is at most `limit`.

    Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", 2013,
    algorithm 1. `norm` is the joint norm of `gradients`; `variables` are not looked at.
    """
    factor = tf.minimum(1.0, limit / tf.maximum(norm, 1e-30))
    return [gradient * factor for gradient in gradients]


def by_norm(
    gradients: list[tf.Tensor], norm: tf.Tensor, limit: float, variables: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Each scaled on its own, so that its norm is at most `limit`."""
    return [tf.clip_by_norm(gradient, limit) for gradient in gradients]


def by_value(
    gradients: list[tf.Tensor], norm: tf.Tensor, limit: float, variables: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Each number cut to -`limit` ... `limit`."""
    return [tf.clip_by_value(gradient, -limit, limit) for gradient in gradients]


def adaptively(
    gradients: list[tf.Tensor], norm: tf.Tensor, limit: float, variables: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Each unit's gradient scaled to at most `limit` times the norm of the unit's own weights.

    Brock, De, Smith, Simonyan, "High-performance large-scale image recognition without
    normalization", 2021, equation 3, with the paper's floor of 0.001 for the norm of the weights.
    A unit is one output channel: all axes but the last; a bias or scale is a unit per number.
    """
    clipped = []
    for gradient, variable in zip(gradients, variables, strict=True):
        axes = list(range(len(gradient.shape) - 1))
        length, bound = (
            tf.sqrt(tf.reduce_sum(tf.square(tensor), axis=axes, keepdims=True))
            for tensor in (gradient, tf.convert_to_tensor(variable))
        )
        bound = limit * tf.maximum(bound, 1e-3)
        clipped.append(gradient * tf.minimum(1.0, bound / tf.maximum(length, 1e-30)))
    return clipped
