"""A linear model: the inputs themselves are the features (softmax regression, least squares)."""

import keras


def linear(x: keras.KerasTensor) -> keras.KerasTensor:
    """A linear model: the inputs themselves are the features (softmax regression, least squares).

    Takes any shape (batch, ...), returns (batch, product of the other axes).
    """
    return keras.layers.Flatten()(x)
