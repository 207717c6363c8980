"""A multilayer perceptron for tables and other vectors."""

from typing import Annotated, Any

import keras

from pipeline.config.registry import register
from pipeline.contracts import Metadata
from pipeline.layers.columns import join_columns


@register
def mlp(
    x: Any,
    metadata: Metadata | None = None,
    /,
    *,
    units: tuple[Annotated[int, (1, None)], ...] = (64, 64),
    dropout: Annotated[float, (0, 1)] = 0.0,
) -> keras.KerasTensor:
    """A multilayer perceptron: dense layers with ReLU.

    Takes any shape (batch, ...), or a dictionary of several inputs, which are joined;
    returns (batch, last of `units`).

    Args:
        x: Inputs.
        metadata: Metadata of the task.
        units: Units of each layer.
        dropout: Fraction of the features of each layer to drop in training.
    """
    x = join_columns(x, metadata)
    for number, count in enumerate(units, 1):
        x = keras.layers.Dense(count, activation="relu", name=f"dense{number}")(x)
        if dropout:
            x = keras.layers.Dropout(dropout, name=f"dropout{number}")(x)
    return x
