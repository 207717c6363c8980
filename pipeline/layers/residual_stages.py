"""The stages of residual networks, used by several models."""

import keras

from pipeline.layers.convolution import image_size, normalized_convolution


def residual_stages(
    x: keras.KerasTensor,
    widths: tuple[int, ...],
    blocks: int,
    stem_stride: int,
    momentum: float,
) -> list[keras.KerasTensor]:
    """The maps after each stage of a compact residual network.

    A convolution comes first; every stage after the first halves height and width. The
    names of the layers are the same in all models, so that one can begin with the
    weights of another.
    """
    image_size(x)  # refuses other inputs than images
    x = normalized_convolution(x, widths[0], 3, "stem_", stem_stride, momentum=momentum)
    x = keras.layers.ReLU(name="stem_relu")(x)
    maps = []
    for stage, width in enumerate(widths, 1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            x = _block(x, width, stride, f"stage{stage}_block{block}_", momentum)
        maps.append(x)
    return maps


def _block(
    x: keras.KerasTensor, width: int, stride: int, prefix: str, momentum: float
) -> keras.KerasTensor:
    """ReLU(shortcut + branch); the names of the layers begin with `prefix`."""
    branch = normalized_convolution(
        x, width, 3, prefix, stride, number="1", momentum=momentum
    )
    branch = keras.layers.ReLU(name=f"{prefix}relu1")(branch)
    branch = normalized_convolution(
        branch,
        width,
        3,
        prefix,
        number="2",
        momentum=momentum,
        gamma_initializer="zeros",
    )
    if stride > 1:
        name = f"{prefix}shortcut_pool"
        x = keras.layers.AveragePooling2D(2, padding="same", name=name)(x)
    if x.shape[-1] != width:
        x = normalized_convolution(x, width, 1, f"{prefix}shortcut_", momentum=momentum)
    x = keras.layers.Add(name=f"{prefix}add")([x, branch])
    return keras.layers.ReLU(name=f"{prefix}relu")(x)
