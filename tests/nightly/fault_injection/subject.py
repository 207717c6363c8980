"""The network that the drill trains: small, with every kind of state that a network can have."""

import keras

from pipeline.models import _layers


def features(x: keras.KerasTensor) -> keras.KerasTensor:
    """Maps of shape (batch, height, width, channels) to a vector per image.

    Moving averages of BatchNormalization and the seeds of dropout are state that no gradient
    touches, and that a checkpoint of the weights alone would lose.
    """
    x = _layers.convolution(x, 8, 3, padding="same")
    x = keras.layers.BatchNormalization(momentum=0.9)(x)
    x = _layers.pool(keras.layers.ReLU()(x))
    x = keras.layers.Flatten()(x)
    return keras.layers.Dropout(0.3)(keras.layers.Dense(32, activation="relu")(x))
