"""A keras.Sequential network of two convolutions, the usual first example."""

from typing import Annotated

import keras

from pipeline.models import _layers


def sequential(
    x: keras.KerasTensor, *, dropout: Annotated[float, (0, 1)] = 0.5
) -> keras.KerasTensor:
    """A keras.Sequential network of two convolutions, the usual first example.

    Takes (batch, height, width, channels), returns a vector per image.

    The network of "Simple MNIST convnet" (F. Chollet, keras.io/examples/vision/mnist_convnet):
    3x3 convolutions of 32 and 64 channels, each followed by ReLU and 2x2 max-pooling, then dropout.

    Args:
        x: Images; sides shorter than 10 pixels are zero-padded by the convolutions.
        dropout: Fraction of the features to drop in training.
    """
    padding = "valid" if min(_layers.sides(x)) >= 10 else "same"
    network = keras.Sequential(name="sequential")
    network.add(keras.Input(x.shape[1:]))
    for filters in (32, 64):
        network.add(keras.layers.Conv2D(filters, 3, activation="relu", padding=padding))
        if min(network.output_shape[1:3]) >= 2:
            network.add(keras.layers.MaxPooling2D(2))
    network.add(keras.layers.Flatten())
    network.add(keras.layers.Dropout(dropout))
    return network(x)
