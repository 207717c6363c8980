"""Softmax regression: the pixels themselves are the features."""

import keras


def features(x: keras.KerasTensor) -> keras.KerasTensor:
    """Maps of shape (batch, height, width, channels) to (batch, height * width * channels)."""
    return keras.layers.Flatten()(x)
