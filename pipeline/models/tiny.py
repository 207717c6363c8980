"""The smallest network with every kind of layer, for experiments."""

import keras

from pipeline.models import _layers


def tiny(x: keras.KerasTensor) -> keras.KerasTensor:
    """The smallest network with every kind of layer, for experiments.

    Takes (batch, height, width, channels), returns (batch, 32).

    A reduced LeNet-5 (see `lenet`): 3x3 convolutions of 3 and 6 channels, each with ReLU and
    2x2 max-pooling, then two dense layers of 32 units.
    """
    for filters in (3, 6):
        x = _layers.convolution(x, filters, 3, activation="relu")
        x = _layers.pool(x)
    x = keras.layers.Flatten()(x)
    for _ in range(2):
        x = keras.layers.Dense(32, activation="relu")(x)
    return x
