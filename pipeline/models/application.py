"""Any network of keras.applications, with or without its ImageNet weights."""

import math

import keras

from pipeline.config.registry import register
from pipeline.layers import applications
from pipeline.layers.convolution import image_size, to_rgb


@register
def application(
    x: keras.KerasTensor, *, name: str, weights: str | None = None
) -> keras.KerasTensor:
    """Any network of keras.applications, with or without its ImageNet weights.

    Takes (batch, height, width, 1 or 3), returns a vector per image.

    A network of keras.io/api/applications (which cites the papers) without its top; its
    last feature maps are averaged. Its preprocessing is part of the model: images with
    a side below the network's minimum (32, or 71 to 75 in the Inception family) are
    enlarged bilinearly without changing their proportions, gray is repeated as red,
    green and blue, and pixels are scaled as by the application's `preprocess_input`.

    The network is one layer named `backbone`, whose `layers` keep Keras's names.
    `backbone.trainable = False` freezes all of them; a frozen BatchNormalization uses
    its moving statistics, in training too, and does not change them.

    Args:
        x: Images in [0, 1].
        name: Keras's name of the network, such as `ResNet50`.
        weights: None for random weights, `imagenet` for the published weights, which
            Keras downloads to ~/.keras/models, or an `.h5` file that Keras has
            downloaded or that was saved with `save_weights`. Only numbers are read from
            it.

    Raises:
        UsageError: The network is unknown; the images have neither 1 nor 3 channels;
            the weights cannot be downloaded, or the file contains other weights.
    """
    construct = applications.find(name, "name")
    height, width = image_size(x)
    x = to_rgb(x, name)
    scale = applications.MIN_SIDES.get(name, 32) / min(height, width)
    if scale > 1:
        height = math.ceil(height * scale)
        width = math.ceil(width * scale)
        x = keras.layers.Resizing(height, width, dtype="float32", name="enlarged")(x)
    x = applications.preprocess(x, construct)
    network = applications.load(construct, name, weights, (height, width, 3))
    # Not the constructor's argument `name`: in some applications, the name of the
    # download depends on it.
    return keras.Model(network.input, network.output, name="backbone")(x)
