"""Any network of keras.applications, with or without its ImageNet weights."""

import inspect
import math
from collections.abc import Callable
from typing import Any, Literal

import keras

from pipeline.models import _layers
from pipeline.utils.errors import UsageError, reason, suggest

# The shortest side that a network accepts, if it is not 32.
_SMALLEST = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}


def application(
    x: keras.KerasTensor, *, name: str, weights: Literal["imagenet"] | None = None
) -> keras.KerasTensor:
    """Any network of keras.applications, with or without its ImageNet weights.

    Takes (batch, height, width, 1 or 3), returns a vector per image.

    A network of keras.io/api/applications (which cites the papers) without its top; its last
    feature maps are averaged. Its preprocessing is part of the model: images with a side below the
    network's minimum (32, or 71 to 75 in the Inception family) are enlarged bilinearly without
    changing their proportions, gray is repeated as red, green and blue, and pixels are scaled as by
    the application's `preprocess_input`.

    The network is one layer named `backbone`, whose `layers` keep Keras's names.
    `backbone.trainable = False` freezes all of them; a frozen BatchNormalization uses its moving
    statistics, in training too, and does not change them.

    Args:
        x: Images in [0, 1].
        name: Keras's name of the network, such as `ResNet50`.
        weights: None for random weights, or `imagenet` for the published weights, which Keras
            downloads to ~/.keras/models.

    Raises:
        UsageError: The network is unknown; the images have neither 1 nor 3 channels; the weights
            cannot be downloaded.
    """
    names = [name for name in dir(keras.applications) if name[0].isupper()]
    if name not in names:
        raise UsageError(f"--model.options name={name}: unknown network; {suggest(name, names)}")
    height, width = _layers.sides(x)
    x = _layers.in_color(x, name)
    construct = getattr(keras.applications, name)
    scale = _SMALLEST.get(name, 32) / min(height, width)
    if scale > 1:
        height, width = math.ceil(height * scale), math.ceil(width * scale)
        x = keras.layers.Resizing(height, width, dtype="float32", name="enlarged")(x)
    x = _preprocess(x, construct)
    shape = (height, width, 3)
    try:
        network = construct(include_top=False, weights=weights, input_shape=shape, pooling="avg")
    except Exception as error:  # Keras raises a bare Exception without a network connection
        if weights is None:
            raise
        raise UsageError(
            f"the ImageNet weights of {name} cannot be downloaded ({reason(error)}); on a machine "
            f"with internet access, call keras.applications.{name}(include_top=False), and copy "
            "its ~/.keras/models to this machine"
        ) from None
    # Not the constructor's argument `name`: some derive the name of the download from it.
    return keras.Model(network.input, network.output, name="backbone")(x)


def _preprocess(x: keras.KerasTensor, construct: Callable) -> keras.KerasTensor:
    """Scales pixels in [0, 1] with the application's own function.

    In float32 at every precision: the 8 significant bits of bfloat16 are too few for pixels.
    """
    x = keras.layers.Rescaling(255.0, dtype="float32", name="pixels")(x)
    module: Any = inspect.getmodule(construct)
    return module.preprocess_input(x)
