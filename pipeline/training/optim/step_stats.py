"""Statistics of the steps, kept on the device: the numbers of bad steps, the norms of
gradients.

They are saved in checkpoints, so that a resumed run continues to count, and the host
reads them once per call. A good step costs two small assignments.
"""

import math
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

# bad steps whose numbers are kept until the host reads them; more are only counted
NAMED = 64
_LAST, _ROW, _LONGEST, _NEW = range(4)


class StepStats:
    """The counters of a model with these trained weights; created in the scope of its
    strategy.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self._places = {id(variable): place for place, variable in enumerate(variables)}
        # Number of the last one; consecutive ones up to it; most consecutive ones, and
        # count, since the host last read them.
        self._bad = counter("bad_steps", np.array([-1, 0, 0, 0]), "int64")
        self._numbers = counter("bad_step_numbers", np.full(NAMED, -1), "int64")
        # Sum, count, maximum.
        self._norms = counter("gradient_norms", np.zeros(3), "float32")
        self._peaks = counter("gradient_peaks", np.zeros(len(variables)), "float32")

    @property
    def variables(self) -> list[keras.Variable]:
        """The state to save in a checkpoint."""
        return [self._bad, self._numbers, self._norms, self._peaks]

    def good(
        self, norm: tf.Tensor, halves: tf.Tensor, variables: Sequence[keras.Variable]
    ) -> None:
        """Records the norm of the gradient of a step that updates the weights, and half
        the squared norm for each of `variables`, which are trained in this phase; in
        cross-replica context.
        """
        total, count, largest = tf.unstack(self._norms.value)
        self._norms.value.assign(
            tf.stack([total + norm, count + 1.0, tf.maximum(largest, norm)])
        )
        places = [[self._places[id(variable)]] for variable in variables]
        peaks = tf.tensor_scatter_nd_max(self._peaks.value, places, halves)
        self._peaks.value.assign(peaks)

    def bad(self, step: tf.Tensor, is_bad: tf.Tensor) -> None:
        """Counts a skipped step, in cross-replica context.

        `is_bad` is False if only the loss scale was too large.
        """
        held = tf.identity(self._bad.value)
        row = tf.where(held[_LAST] == step - 1, held[_ROW], 0) + 1
        longest = tf.maximum(held[_LONGEST], row)
        now = tf.stack([step, row, longest, held[_NEW] + 1])
        free = tf.equal(tf.range(NAMED, dtype=tf.int64), held[_NEW])
        self._numbers.value.assign(tf.where(free & is_bad, step, self._numbers.value))
        self._bad.value.assign(tf.where(is_bad, now, held))

    def pop_bad_steps(self) -> tuple[list[int], int, int] | None:
        """The steps whose loss or gradient was not finite since the last call, or None.

        Returns: (the numbers of the first `NAMED`, counted from 0 as in
        `Batches.tickets`; how many there were; the largest number of consecutive ones,
        some of which may be from before).
        """
        held = np.array(self._bad.numpy())
        new, row = int(held[_NEW]), int(held[_LONGEST])
        if not new:
            return None
        steps = self._numbers.numpy()[: min(new, NAMED)].tolist()
        held[[_LONGEST, _NEW]] = 0
        self._bad.assign(held)
        return steps, new, row

    def begin(self) -> None:
        """Resets the norms at the first step of an epoch, not at the end of one: a
        checkpoint that is saved during validation still needs them.
        """
        for variable in (self._norms, self._peaks):
            variable.assign(np.zeros(variable.shape, np.float32))

    def norms(self) -> tuple[float, float, list[float]]:
        """Norms of the gradients since `begin`: mean, maximum, and maximum for each
        weight.

        The first two are NaN if no step was good.
        """
        total, count, largest = self._norms.numpy().tolist()
        peaks = np.sqrt(2 * self._peaks.numpy()).tolist()
        return (total / count, largest, peaks) if count else (math.nan, math.nan, peaks)


def counter(
    name: str, value: float | list[float] | np.ndarray, dtype: str
) -> keras.Variable:
    """A variable with the same value on every replica."""
    return keras.Variable(
        value, dtype=dtype, trainable=False, name=name, aggregation="only_first_replica"
    )
