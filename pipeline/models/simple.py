"""Simple networks: convnet, LeNet-5, the usual first example, linear and tiny ones."""

from typing import Annotated, Any

import keras

from pipeline.config.registry import register
from pipeline.layers.batch_normalization import FusedBatchNormalization
from pipeline.layers.convolution import convolution, image_size, pool
from pipeline.layers.joined import flatten


@register
def convnet(
    x: keras.KerasTensor,
    *,
    filters: Annotated[int, (1, None)] = 64,
    blocks: Annotated[int, (1, None)] = 2,
    momentum: Annotated[float, (0, 1)] = 0.9,
) -> keras.KerasTensor:
    """Blocks of convolution, batch normalization, ReLU and max-pooling.

    Takes (batch, height, width, channels), returns a vector per image.

    As in Ioffe and Szegedy, "Batch Normalization", ICML 2015, section 3.2, the
    normalization is between the convolution, which needs no bias then, and its
    activation. Pooling before ReLU gives the same result as after it, with a quarter of
    the work.

    Args:
        x: Images.
        filters: Channels of each 3x3 convolution.
        blocks: Number of blocks; each halves height and width.
        momentum: Weight of the old value in the moving mean and variance. With Keras's
            default of 0.99, it takes hundreds of steps until evaluation is as good as
            training: after 340 steps on digits, the accuracy was 0.12 instead of 0.99.
    """
    for _ in range(blocks):
        x = convolution(x, filters, 3, padding="same", use_bias=False)
        x = FusedBatchNormalization(momentum=momentum)(x)
        x = pool(x)
        x = keras.layers.ReLU()(x)
    return keras.layers.Flatten()(x)


@register
def lenet(x: keras.KerasTensor) -> keras.KerasTensor:
    """LeNet-5 with ReLU and max-pooling.

    Takes (batch, height, width, channels), returns (batch, 84).

    LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document
    recognition", Proc. IEEE 1998, section II.B, as it is taught today: the first
    convolution pads 28x28 images to the paper's 32x32, pooling has no weights, and
    every activation is a ReLU. Layers C1, S2, C3 (fully connected to S2), S4, C5 and
    F6; the output layer is the task's head.
    """
    x = convolution(x, 6, 5, padding="same", activation="relu")
    x = pool(x)
    x = convolution(x, 16, 5, activation="relu")
    x = pool(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(120, activation="relu")(x)
    return keras.layers.Dense(84, activation="relu")(x)


@register
def tiny(x: keras.KerasTensor) -> keras.KerasTensor:
    """The smallest network with every kind of layer, for experiments.

    Takes (batch, height, width, channels), returns (batch, 32).

    A reduced LeNet-5 (see `lenet`): 3x3 convolutions of 3 and 6 channels, each with
    ReLU and 2x2 max-pooling, then two dense layers of 32 units.
    """
    for filters in (3, 6):
        x = convolution(x, filters, 3, activation="relu")
        x = pool(x)
    x = keras.layers.Flatten()(x)
    for _ in range(2):
        x = keras.layers.Dense(32, activation="relu")(x)
    return x


@register
def sequential(
    x: keras.KerasTensor, *, dropout: Annotated[float, (0, 1)] = 0.5
) -> keras.KerasTensor:
    """A keras.Sequential network of two convolutions, the usual first example.

    Takes (batch, height, width, channels), returns a vector per image.

    The network of "Simple MNIST convnet" (F. Chollet,
    keras.io/examples/vision/mnist_convnet): 3x3 convolutions of 32 and 64 channels,
    each followed by ReLU and 2x2 max-pooling, then dropout.

    Args:
        x: Images; sides shorter than 10 pixels are zero-padded by the convolutions.
        dropout: Fraction of the features to drop in training.
    """
    padding = "valid" if min(image_size(x)) >= 10 else "same"
    network = keras.Sequential(name="sequential")
    network.add(keras.Input(x.shape[1:]))
    for filters in (32, 64):
        network.add(keras.layers.Conv2D(filters, 3, activation="relu", padding=padding))
        if min(network.output_shape[1:3]) >= 2:
            network.add(keras.layers.MaxPooling2D(2))
    network.add(keras.layers.Flatten())
    network.add(keras.layers.Dropout(dropout))
    return network(x)


@register
def linear(x: Any) -> keras.KerasTensor:
    """A linear model: the inputs themselves are the features (softmax regression, least
    squares).

    Takes any shape (batch, ...), or a dictionary of several inputs, which are joined;
    returns (batch, number of values of an example).
    """
    return flatten(x)
