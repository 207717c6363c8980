"""Any network of keras.applications, with or without its ImageNet weights."""

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from pipeline.layers.convolution import image_size, to_rgb
from pipeline.utils.errors import UsageError, reason, suggest

# The shortest side that a network accepts, if it is not 32.
_SMALLEST = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}


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
    names = [name for name in dir(keras.applications) if name[0].isupper()]
    if name not in names:
        raise UsageError(
            f"--model.options name={name}: unknown network; {suggest(name, names)}"
        )
    height, width = image_size(x)
    x = to_rgb(x, name)
    construct = getattr(keras.applications, name)
    scale = _SMALLEST.get(name, 32) / min(height, width)
    if scale > 1:
        height = math.ceil(height * scale)
        width = math.ceil(width * scale)
        x = keras.layers.Resizing(height, width, dtype="float32", name="enlarged")(x)
    x = _preprocess(x, construct)
    return _backbone(construct, name, weights, (height, width, 3))(x)


def _preprocess(x: keras.KerasTensor, construct: Callable) -> keras.KerasTensor:
    """Scales pixels in [0, 1] with the application's own function.

    In float32 at every precision: the 8 significant bits of bfloat16 are too few for
    pixels.
    """
    x = keras.layers.Rescaling(255.0, dtype="float32", name="pixels")(x)
    module: Any = inspect.getmodule(construct)
    return module.preprocess_input(x)


def _backbone(
    construct: Callable, name: str, weights: str | None, shape: tuple[int, int, int]
) -> keras.Model:
    """Creates the application's network with its weights, named `backbone`."""
    plain = {"include_top": False, "input_shape": shape, "pooling": "avg"}
    if weights == "imagenet":
        try:
            network = construct(weights="imagenet", **plain)
        # Without a network connection, Keras raises a bare Exception.
        except Exception as error:
            raise UsageError(
                f"the ImageNet weights of {name} cannot be downloaded"
                f" ({reason(error)}); on a machine with internet access, run"
                f" keras.applications.{name}(include_top=False)"
                f'.save_weights("{name}.weights.h5"), and use that file: '
                f"--model.options name={name} weights=/path/{name}.weights.h5"
            ) from None
    else:
        network = construct(weights=None, **plain)
        if weights is not None:
            _load(network, name, weights)
            _restore_rescaling(network, construct)
    # Not the constructor's argument `name`: in some applications, the name of the
    # download depends on it.
    return keras.Model(network.input, network.output, name="backbone")


def _load(network: keras.Model, name: str, path: str) -> None:
    """Loads a weights file into a network."""
    try:
        # Keras only warns about layers that are missing from the file and stay random.
        with warnings.catch_warnings(action="error", category=UserWarning):
            network.load_weights(path)
    except (OSError, ValueError, KeyError, TypeError, UserWarning) as error:
        raise UsageError(
            f"--model.options weights={path}: not the weights of {name} without its"
            f" top: {reason(error)}"
        ) from None


def _restore_rescaling(network: keras.Model, construct: Callable) -> None:
    """Scales the first kernel of EfficientNetB0 to B7, as for `weights="imagenet"`.

    These weights were trained on pixels divided twice by the root of the channel's
    standard deviation, but for a file Keras omits the layer that divides the second
    time. In a file that was not trained on ImageNet, the normalization does nothing.
    """
    deviations = getattr(inspect.getmodule(construct), "IMAGENET_STDDEV_RGB", None)
    if deviations is None:
        return
    kinds = [type(layer) for layer in network.layers]
    normalization = network.layers[kinds.index(keras.layers.Normalization)]
    if np.any(normalization.get_weights()[0]):
        kernel = network.layers[kinds.index(keras.layers.Conv2D)].kernel
        kernel.assign(kernel / np.sqrt(np.float32(deviations))[:, None])
