"""Counts bad steps and records gradient norms on the device.

Checkpoints contain these statistics, so that a resumed run continues to count. The host
reads them once per call. A good step costs two small assignments.
"""

import math
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

# Bad steps whose numbers are stored until the host reads them; further ones are only
# counted.
NAMED = 64
_LAST, _ROW, _LONGEST, _NEW = range(4)


class StepStats:
    """Statistics of the steps of a model; create them in the scope of its strategy.

    `variables` are all weights that are trained at any time.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self._indices = {id(variable): n for n, variable in enumerate(variables)}
        # The last bad step; the length of the row that it ends; the longest row and the
        # number of bad steps since the host last read them.
        self._bad = counter("bad_steps", np.array([-1, 0, 0, 0]), "int64")
        self._numbers = counter("bad_step_numbers", np.full(NAMED, -1), "int64")
        # Sum, count, maximum.
        self._norms = counter("gradient_norms", np.zeros(3), "float32")
        self._peaks = counter("gradient_peaks", np.zeros(len(variables)), "float32")

    @property
    def variables(self) -> list[keras.Variable]:
        """The state to save in a checkpoint."""
        return [self._bad, self._numbers, self._norms, self._peaks]

    def record_good_step(
        self,
        norm: tf.Tensor,
        half_squares: tf.Tensor,
        variables: Sequence[keras.Variable],
    ) -> None:
        """Records a step that updates the weights; called for one replica.

        Args:
            norm: Global norm of the gradient.
            half_squares: Half the squared norm for each of `variables`.
            variables: The weights that are trained in this phase.
        """
        total, count, largest = tf.unstack(self._norms.value)
        self._norms.value.assign(
            tf.stack([total + norm, count + 1.0, tf.maximum(largest, norm)])
        )
        indices = [[self._indices[id(variable)]] for variable in variables]
        peaks = tf.tensor_scatter_nd_max(self._peaks.value, indices, half_squares)
        self._peaks.value.assign(peaks)

    def record_bad_step(self, step: tf.Tensor, is_bad: tf.Tensor) -> None:
        """Counts a skipped step; called for one replica.

        `is_bad` is False if only the loss scale was too large.
        """
        old = tf.identity(self._bad.value)
        row = tf.where(old[_LAST] == step - 1, old[_ROW], 0) + 1
        longest = tf.maximum(old[_LONGEST], row)
        new = tf.stack([step, row, longest, old[_NEW] + 1])
        is_next = tf.equal(tf.range(NAMED, dtype=tf.int64), old[_NEW])
        numbers = tf.where(is_next & is_bad, step, self._numbers.value)
        self._numbers.value.assign(numbers)
        self._bad.value.assign(tf.where(is_bad, new, old))

    def pop_bad_steps(self) -> tuple[list[int], int, int] | None:
        """Returns the bad steps since the last call; None if there are none.

        Returns:
            (the first `NAMED` steps, counted from 0; the number of bad steps; the
            length of the longest row, some of which may be from before).
        """
        state = np.array(self._bad.numpy())
        count = int(state[_NEW])
        longest = int(state[_LONGEST])
        if not count:
            return None
        steps = self._numbers.numpy()[: min(count, NAMED)].tolist()
        state[[_LONGEST, _NEW]] = 0
        self._bad.assign(state)
        return steps, count, longest

    def begin(self) -> None:
        """Resets the norms at the first step of an epoch.

        Not at its end: a checkpoint that is saved during validation needs them.
        """
        for variable in (self._norms, self._peaks):
            variable.assign(np.zeros(variable.shape, np.float32))

    def norms(self) -> tuple[float, float, list[float]]:
        """Returns the mean and maximum norm since `begin`, and the maximum per weight.

        The first two are NaN if no step was good.
        """
        total, count, largest = self._norms.numpy().tolist()
        peaks = np.sqrt(2 * self._peaks.numpy()).tolist()
        if not count:
            return math.nan, math.nan, peaks
        return total / count, largest, peaks


def counter(
    name: str, value: float | list[float] | np.ndarray, dtype: str
) -> keras.Variable:
    """Creates a variable with the same value on every replica."""
    return keras.Variable(
        value, dtype=dtype, trainable=False, name=name, aggregation="only_first_replica"
    )
