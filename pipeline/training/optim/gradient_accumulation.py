"""Gradient accumulation: computes a batch in micro-batches."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from pipeline.contracts import Example


def accumulate_gradients(
    loss_and_gradients: Callable[[Example], tuple[tf.Tensor, list[tf.Tensor]]],
    batch: Example,
    count: int,
    variables: Sequence[keras.Variable],
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Sums the loss and the gradients over `count` micro-batches.

    Only one micro-batch is in memory at a time. `variables` are the weights that the
    gradients belong to.
    """
    micro_batches = {
        name: tf.reshape(values, (count, -1, *values.shape[1:]))
        for name, values in batch.items()
    }

    def add(index: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
        micro_batch = {name: values[index] for name, values in micro_batches.items()}
        loss, gradients = loss_and_gradients(micro_batch)
        terms = zip(sums, (loss, *gradients), strict=True)
        return index + 1, *(total + term for total, term in terms)

    zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
    _, loss, *gradients = tf.while_loop(
        lambda index, *sums: index < count, add, (0, 0.0, *zeros), parallel_iterations=1
    )
    return loss, gradients
