"""A convolutional network for texts."""

from typing import Annotated, Any

import keras
from keras import ops

from pipeline.config.registry import register
from pipeline.contracts import Metadata
from pipeline.layers.tokens import embed, tokens_of


@register
def text_cnn(
    x: Any,
    metadata: Metadata | None = None,
    /,
    *,
    dimension: Annotated[int, (1, 4096)] = 128,
    filters: Annotated[int, (1, 4096)] = 100,
    kernels: tuple[Annotated[int, (1, 64)], ...] = (3, 4, 5),
    dropout: Annotated[float, (0, 1)] = 0.5,
) -> keras.KerasTensor:
    """Convolutions over the vectors of words, each followed by its maximum over the
    text.

    Takes texts; returns a vector per text. Y. Kim, "Convolutional Neural Networks for
    Sentence Classification", EMNLP 2014, with vectors trained from scratch.

    Args:
        x: Texts.
        metadata: Metadata of the task.
        dimension: Length of the vector of a word.
        filters: Channels of each convolution.
        kernels: Words that each convolution sees.
        dropout: Fraction of the features to drop in training.
    """
    tokens = tokens_of(x, "text_cnn")
    vectors = embed(tokens, metadata, dimension)
    parts = []
    for kernel in kernels:
        layer = keras.layers.Conv1D(
            filters, kernel, padding="same", activation="relu", name=f"words{kernel}"
        )
        parts.append(ops.max(layer(vectors), axis=1))
    features = ops.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
    return keras.layers.Dropout(dropout, name="dropout")(features)
