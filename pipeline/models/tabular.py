"""A residual multilayer perceptron for the rows of tables."""

from typing import Annotated, Any

import keras

from pipeline.config.registry import register
from pipeline.contracts import Metadata
from pipeline.layers.columns import join_columns


@register
def tabular(
    x: Any,
    metadata: Metadata | None = None,
    /,
    *,
    units: Annotated[int, (1, None)] = 128,
    blocks: Annotated[int, (0, None)] = 2,
    dropout: Annotated[float, (0, 1)] = 0.2,
    dimension: Annotated[int, (1, 1024)] = 8,
) -> keras.KerasTensor:
    """A residual network for the rows of tables: numbers, words and short texts.

    Takes the columns of rows, or any shape (batch, ...); returns (batch, units).

    As the ResNet of Gorishniy et al., "Revisiting Deep Learning Models for Tabular
    Data", NeurIPS 2021, section 3.2: each block is a normalization, a dense layer of
    twice the width with ReLU and dropout, and a dense layer, added to its input. Words
    have trained vectors. Layers are normalized instead of batches, so that small tables
    train in small batches.

    Args:
        x: The columns.
        metadata: Metadata of the task.
        units: Width of the network.
        blocks: Number of residual blocks.
        dropout: Fraction of the features inside of a block to drop in training.
        dimension: Length of the vector of a word.
    """
    x = join_columns(x, metadata, dimension)
    x = keras.layers.Dense(units, name="stem")(x)
    for number in range(1, blocks + 1):
        y = keras.layers.LayerNormalization(name=f"norm{number}")(x)
        y = keras.layers.Dense(2 * units, activation="relu", name=f"expand{number}")(y)
        if dropout:
            y = keras.layers.Dropout(dropout, name=f"dropout{number}")(y)
        y = keras.layers.Dense(units, name=f"reduce{number}")(y)
        x = keras.layers.Add(name=f"add{number}")([x, y])
    x = keras.layers.LayerNormalization(name="norm")(x)
    return keras.layers.ReLU(name="relu")(x)
