"""Networks of keras.applications, their preprocessing and their weights."""

import inspect
import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from pipeline.layers.convolution import image_size, to_rgb
from pipeline.utils.console import for_caller
from pipeline.utils.errors import UsageError, reason, suggest

# The shortest side that a network accepts, if it is not 32.
MIN_SIDES = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}


def application_maps(
    x: keras.KerasTensor, name: str, weights: str | None, strides: Sequence[int]
) -> list[keras.KerasTensor]:
    """The last feature maps with each stride, of a network of keras.applications.

    As `application` otherwise, with one layer named `backbone`.

    Raises:
        UsageError: As for `application`; the network has no maps with a stride.
    """
    construct = find(name, "backbone")
    height, width = image_size(x)
    if min(height, width) < (smallest := MIN_SIDES.get(name, 32)):
        raise UsageError(
            f"--model.options backbone={name} needs images of at least {smallest} x"
            f" {smallest} pixels; set --image-size"
        )
    x = preprocess(to_rgb(x, name), construct)
    network = load(construct, name, weights, (height, width, 3))
    maps = {}
    for layer in network.layers:
        if isinstance(layer.output, keras.KerasTensor):
            maps[layer.output.shape[1:-1]] = layer.output
    sizes = [(math.ceil(height / n), math.ceil(width / n)) for n in strides]
    if not maps.keys() >= {*sizes}:
        raise UsageError(
            f"--model.options backbone={name}: it has no features with the strides"
            f" {', '.join(map(str, strides))} for images of {height} x {width} pixels;"
            " MobileNetV2, ResNet50 and EfficientNetB0 have them"
        )
    outputs = [maps[size] for size in sizes]
    return keras.Model(network.input, outputs, name="backbone")(x)


def weights_folder() -> str:
    """The directory in which Keras looks for weights before it downloads them."""
    home = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
    return os.path.join(home, "models")


def find(name: str, option: str) -> Callable:
    """The constructor of a network; UsageError names the option if there is none."""
    names = [name for name in dir(keras.applications) if name[0].isupper()]
    if name not in names:
        raise UsageError(
            f"--model.options {option}={name}: unknown network; {suggest(name, names)}"
        )
    return getattr(keras.applications, name)


def preprocess(x: keras.KerasTensor, construct: Callable) -> keras.KerasTensor:
    """Scales pixels in [0, 1] with the application's own function.

    In float32 at every precision: the 8 significant bits of bfloat16 are too few for
    pixels.
    """
    x = keras.layers.Rescaling(255.0, dtype="float32", name="pixels")(x)
    module: Any = inspect.getmodule(construct)
    return module.preprocess_input(x)


def load(
    construct: Callable, name: str, weights: str | None, shape: tuple[int, int, int]
) -> keras.Model:
    """Creates the application's network with its weights."""
    plain = {"include_top": False, "input_shape": shape, "pooling": "avg"}
    if weights == "imagenet":
        try:
            network = construct(weights="imagenet", **plain)
        # Without a network connection, Keras raises a bare Exception.
        except Exception as error:
            url = re.search(r"https://[^\s:]+", str(error))
            raise UsageError(
                f"the ImageNet weights of {name} cannot be downloaded"
                f" ({reason(error)}); put {url[0] if url else 'their file'} into"
                f" {weights_folder()}, or train without them: {_without_weights(name)}"
            ) from None
    else:
        network = construct(weights=None, **plain)
        if weights is not None:
            _read_weights(network, name, weights)
            _restore_rescaling(network, construct)
    return network


def _without_weights(name: str) -> str:
    """How to train without weights."""
    return for_caller(
        "--model.options weights=None",
        f'model={{"name": "{name}", "options": {{"weights": None}}}}',
    )


def _read_weights(network: keras.Model, name: str, path: str) -> None:
    """Loads a weights file into a network."""
    if not os.path.isfile(path):
        raise UsageError(
            f"--model.options weights={path}: no such file; 'imagenet' has"
            " those of Keras"
        )
    try:
        # Keras only warns about layers that are missing from the file and stay random.
        with warnings.catch_warnings(action="error", category=UserWarning):
            network.load_weights(path)
    except (
        *(OSError, ValueError, KeyError, TypeError, UserWarning),
        zipfile.BadZipFile,
    ) as error:
        text = reason(error)
        if text.startswith("Skipping"):  # names of Keras's own containers
            text = "its layers have other weights"
        raise UsageError(
            f"--model.options weights={path}: not the weights of {name} without its"
            f" top: {text}"
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
