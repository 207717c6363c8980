"""A recurrent network for texts."""

from typing import Annotated, Any, Literal

import keras

from pipeline.config.registry import register
from pipeline.contracts import Metadata
from pipeline.layers.tokens import attend, embed, mask_of, tokens_of

_CELLS = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM}


@register
def recurrent(
    x: Any,
    metadata: Metadata | None = None,
    /,
    *,
    cell: Literal["gru", "lstm"] = "gru",
    dimension: Annotated[int, (1, 4096)] = 128,
    units: Annotated[int, (1, 4096)] = 64,
    dropout: Annotated[float, (0, 1)] = 0.5,
) -> keras.KerasTensor:
    """A bidirectional GRU or LSTM over the vectors of words, pooled by attention.

    Takes texts; returns a vector per text. Padding is multiplied by zero before and
    after the recurrent layer.

    Args:
        x: Texts.
        metadata: Metadata of the task.
        cell: Kind of the recurrent layer.
        dimension: Length of the vector of a word.
        units: Units in each direction.
        dropout: Fraction of the vectors' and of the features' numbers to drop in
            training.
    """
    tokens = tokens_of(x, "recurrent")
    vectors = embed(tokens, metadata, dimension)
    vectors = keras.layers.Dropout(dropout, name="dropout_vectors")(vectors)
    # The kernel of cuDNN would be exported as an operation that only GPUs have.
    layer = _CELLS[cell](units, return_sequences=True, use_cudnn=False)
    features = keras.layers.Bidirectional(layer, name=cell)(vectors)
    features = attend(features * mask_of(tokens, features), tokens)
    return keras.layers.Dropout(dropout, name="dropout")(features)
