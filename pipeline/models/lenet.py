"""LeNet-5, and a smaller network for experiments."""

import keras

from pipeline.models import _layers


def lenet(x: keras.KerasTensor) -> keras.KerasTensor:
    """LeNet-5 with ReLU and max-pooling.

    Takes (batch, height, width, channels), returns (batch, 84).

    LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition",
    Proc. IEEE 1998, section II.B, as it is taught today: the first convolution pads 28x28 images to
    the paper's 32x32, pooling has no weights, and every activation is a ReLU. Layers C1, S2, C3
    (fully connected to S2), S4, C5 and F6; the output layer is the task's head.
    """
    x = _layers.convolution(x, 6, 5, padding="same", activation="relu")
    x = _layers.pool(x)
    x = _layers.convolution(x, 16, 5, activation="relu")
    x = _layers.pool(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(120, activation="relu")(x)
    return keras.layers.Dense(84, activation="relu")(x)


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
