"""Any network of keras.applications, with or without its ImageNet weights."""

import contextlib
import inspect
import math
import os
import socket
import warnings
from collections.abc import Callable, Iterator

import keras
import numpy as np

from pipeline.models import _layers
from pipeline.utils.errors import UsageError, suggest

# Shortest side that a network takes; 32 where nothing stands here.
_SMALLEST = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}
_TIMEOUT = 15  # seconds without an answer from the server of the weights


def application(
    x: keras.KerasTensor, *, name: str, weights: str | None = None
) -> keras.KerasTensor:
    """Any network of keras.applications, with or without its ImageNet weights.

    Maps of shape (batch, height, width, 1 or 3) to a vector per image.

    A network of keras.io/api/applications (the paper of each stands there) without its top; its
    last maps are averaged. What the network wants to be fed is part of the model: images with a
    side below the network's least (32, or 71 to 75 of the Inception family) are enlarged
    bilinearly without changing their proportions, grey is repeated as red, green and blue, and the
    pixels get the range that the application's `preprocess_input` gives them.

    The network is one layer named `backbone`; the layers inside keep Keras's names and are found
    in its `layers`. `backbone.trainable = False` freezes all of them, and a frozen
    BatchNormalization answers with its moving statistics, in training too, and leaves them alone.

    Args:
        x: Images in [0, 1].
        name: Such as `ResNet50`, as Keras writes it.
        weights: None to begin at random, `imagenet` to let Keras download (and keep in
            ~/.keras/models) the published ones, or a file that ends in `.h5`: one that Keras
            downloaded elsewhere, or one made there with `save_weights`. Numbers are read from it
            into the network built here; a description of a model in it is not looked at.

    Raises:
        UsageError: There is no such network; the images have neither 1 nor 3 channels; the weights
            cannot be downloaded, or the file is not one of this network's.
    """
    networks = _networks()
    if name not in networks:
        raise UsageError(f"--model.options name={name}: unknown; {suggest(name, networks)}")
    sides, channels = _layers.sides(x), x.shape[-1]
    if channels not in (1, 3):
        raise UsageError(f"{name} takes images of 1 or 3 channels, these have {channels}")
    construct = getattr(keras.applications, name)
    smallest = _SMALLEST.get(name, 32)
    if min(sides) < smallest:
        sides = [math.ceil(side * smallest / min(sides)) for side in sides]
        x = keras.layers.Resizing(*sides, dtype="float32", name="enlarged")(x)
    if channels == 1:
        x = keras.layers.Concatenate(dtype="float32", name="grey_as_colour")([x, x, x])
    x = _scaled(x, construct)
    return _backbone(construct, name, weights, (*sides, 3))(x)


def _networks() -> list[str]:
    """The networks of this version of Keras."""
    return [name for name in dir(keras.applications) if name[0].isupper()]


def _scaled(x: keras.KerasTensor, construct: Callable) -> keras.KerasTensor:
    """Pixels in [0, 1] to the application's own range, by its own function.

    In float32 under every precision: bfloat16 has 8 bits, and the pixels would lose some.
    """
    x = keras.layers.Rescaling(255.0, dtype="float32", name="pixels")(x)
    return inspect.getmodule(construct).preprocess_input(x)


def _backbone(
    construct: Callable, name: str, weights: str | None, shape: tuple[int, int, int]
) -> keras.Model:
    """The application's network for images of a shape, with its weights, named `backbone`."""
    plain = {"include_top": False, "input_shape": shape, "pooling": "avg"}
    if weights == "imagenet":
        try:
            with _timeout(_TIMEOUT):
                network = construct(weights="imagenet", **plain)
        except Exception as error:  # Keras raises a bare Exception for a missing network
            raise UsageError(
                f"the ImageNet weights of {name} cannot be fetched ({_first_line(error)}); where "
                f"there is a network, call keras.applications.{name}(include_top=False)"
                f'.save_weights("{name}.weights.h5"), and give that file: '
                f"--model.options name={name} weights=/path/{name}.weights.h5"
            ) from None
    else:
        if weights is not None:
            _check_file(weights)
        network = construct(weights=None, **plain)
        if weights is not None:
            _load(network, name, weights)
            _complete(network, construct)
    # Not the argument `name` of the constructor: some derive the name of the download from it.
    return keras.Model(network.input, network.output, name="backbone")


def _check_file(path: str) -> None:
    given = f"--model.options weights={path}"
    if not path.endswith(".h5"):
        raise UsageError(f"{given}: must be imagenet or a file that ends in .h5")
    if not os.path.isfile(path):
        raise UsageError(f"{given}: there is no such file")


def _load(network: keras.Model, name: str, path: str) -> None:
    """Numbers of a weights file into a network."""
    try:
        # Keras only warns where a part of the file is missing and its layers stay random.
        with warnings.catch_warnings(action="error", category=UserWarning):
            network.load_weights(path)
    except (OSError, ValueError, KeyError, TypeError, UserWarning) as error:
        reason = _first_line(error)
        raise UsageError(
            f"--model.options weights={path}: not the weights of {name} without its top: {reason}"
        ) from None


def _complete(network: keras.Model, construct: Callable) -> None:
    """Gives EfficientNetB0 to B7 the scale that Keras adds for `weights="imagenet"` only.

    Those weights were trained on pixels divided twice by a root of the channel's standard
    deviation. Keras has one of the divisions as a layer that it leaves out for a file; here it
    goes into the kernel of the first convolution. A file of a network that was not trained on
    ImageNet is told by its normalisation, which does nothing.
    """
    deviations = getattr(inspect.getmodule(construct), "IMAGENET_STDDEV_RGB", None)
    if deviations is None:
        return
    kinds = [type(layer) for layer in network.layers]
    normalization = network.layers[kinds.index(keras.layers.Normalization)]
    if np.any(normalization.get_weights()[0]):
        kernel = network.layers[kinds.index(keras.layers.Conv2D)].kernel
        kernel.assign(kernel / np.sqrt(np.float32(deviations))[:, None])


@contextlib.contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """New sockets give up after so many seconds of silence; Keras's download would wait on."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
