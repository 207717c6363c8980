"""A small transformer for texts, trained from scratch."""

from typing import Annotated, Any

import keras
from keras import ops

from pipeline.config.registry import register
from pipeline.contracts import Metadata
from pipeline.layers.tokens import attend, embed, tokens_of


@register
def text_transformer(
    x: Any,
    metadata: Metadata | None = None,
    /,
    *,
    blocks: Annotated[int, (1, 64)] = 2,
    heads: Annotated[int, (1, 64)] = 4,
    dimension: Annotated[int, (1, 4096)] = 128,
    dropout: Annotated[float, (0, 1)] = 0.3,
) -> keras.KerasTensor:
    """Blocks of attention between the words of a text, pooled by attention.

    Takes texts; returns a vector per text. Vaswani et al., "Attention Is All You Need",
    NIPS 2017, with normalization before each part of a block, and learned positions.

    Args:
        x: Texts.
        metadata: Metadata of the task.
        blocks: Number of blocks.
        heads: Heads of attention.
        dimension: Length of the vector of a word, a multiple of `heads`.
        dropout: Fraction of the features to drop in training.
    """
    tokens = tokens_of(x, "text_transformer")
    is_word = tokens > 0
    positions = ops.cumsum(ops.cast(is_word, "int32"), axis=1)
    table = keras.layers.Embedding(tokens.shape[1] + 1, dimension, name="positions")
    features = embed(tokens, metadata, dimension) + table(positions)
    features = keras.layers.Dropout(dropout, name="dropout_vectors")(features)
    # A text without words attends to its first position.
    is_first = ops.equal(ops.cumsum(ops.ones_like(tokens), axis=1), 1)
    mask = ops.expand_dims(ops.logical_or(is_word, is_first), 1)
    for number in range(1, blocks + 1):
        normalized = keras.layers.LayerNormalization(name=f"norm{number}a")(features)
        layer = keras.layers.MultiHeadAttention(
            heads, dimension // heads, dropout=dropout, name=f"heads{number}"
        )
        features += layer(normalized, normalized, attention_mask=mask)
        normalized = keras.layers.LayerNormalization(name=f"norm{number}b")(features)
        hidden = keras.layers.Dense(
            4 * dimension, activation="gelu", name=f"wide{number}"
        )(normalized)
        hidden = keras.layers.Dense(dimension, name=f"narrow{number}")(hidden)
        features += keras.layers.Dropout(dropout, name=f"dropout{number}")(hidden)
    features = keras.layers.LayerNormalization(name="norm")(features)
    return attend(features, tokens)
