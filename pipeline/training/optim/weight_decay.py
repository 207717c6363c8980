"""Weight decay: which weights are exempt."""

from collections.abc import Sequence

import keras


def exempt_vectors(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
) -> None:
    """Exempts biases, and the scales and offsets of normalizations; all are vectors."""
    vectors = [variable for variable in variables if len(variable.shape) < 2]
    # A call replaces the names that a user has excluded.
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    names = None if pattern is None else [pattern.pattern]
    optimizer.exclude_from_weight_decay(var_list=vectors, var_names=names)
