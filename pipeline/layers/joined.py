"""Joins the inputs of a model."""

from typing import Any

import keras


def flatten(x: Any) -> keras.KerasTensor:
    """All numbers of an example as a vector, (batch, n).

    `x` has any shape (batch, ...), or is a dictionary of such tensors.
    """
    parts = [keras.layers.Flatten()(part) for part in keras.tree.flatten(x)]
    return keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
