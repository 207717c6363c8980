"""A small residual network with a pyramid of features, for boxes."""

from typing import Annotated

import keras

from pipeline.layers.convolution import image_size, normalized_convolution


def detector(
    x: keras.KerasTensor,
    *,
    widths: tuple[Annotated[int, (1, None)], ...] = (24, 48, 96, 128),
    blocks: Annotated[int, (1, None)] = 1,
    finest: Annotated[int, (1, None)] = 2,
    pyramid: Annotated[int, (1, None)] = 64,
    momentum: Annotated[float, (0, 1)] = 0.9,
) -> list[keras.KerasTensor]:
    """A small residual network with a pyramid of features, for boxes.

    Takes (batch, height, width, channels) of any size, returns maps (batch, height / s,
    width / s, `pyramid`), rounded up, for the strides s of the stages from `finest`: 8,
    16 and 32 by default.

    Lin et al., "Feature pyramid networks for object detection", CVPR 2017: a coarse map
    is enlarged and added to the next finer one, so that every map sees the whole
    object. Blocks are those of He et al., "Deep residual learning for image
    recognition", CVPR 2016, as in `residual`.

    Args:
        x: Images.
        widths: Channels of each stage; the first has stride 4, and every other one
            halves height and width.
        blocks: Number of blocks in each stage.
        finest: First stage with a map, from 1; 1 finds smaller objects, and takes
            several times as long.
        pyramid: Channels of the maps.
        momentum: Weight of the old value in the moving mean and variance.
    """
    image_size(x)  # refuses other inputs than images
    for number in ("1", "2"):
        x = normalized_convolution(
            x, widths[0], 3, "stem_", 2, number=number, momentum=momentum
        )
        x = keras.layers.ReLU(name=f"stem_relu{number}")(x)
    stages = []
    for stage, width in enumerate(widths, 1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            x = _block(x, width, stride, f"stage{stage}_block{block}_", momentum)
        stages.append(x)
    stages = stages[min(finest, len(widths)) - 1 :]
    maps: list[keras.KerasTensor] = []
    for level in range(len(stages), 0, -1):
        x = normalized_convolution(
            stages[level - 1], pyramid, 1, f"level{level}_", momentum=momentum
        )
        if maps:
            name = f"level{level}_enlarge"
            resize = keras.layers.Resizing(*x.shape[1:3], name=name)
            x = keras.layers.Add(name=f"level{level}_add")([x, resize(maps[0])])
        x = keras.layers.ReLU(name=f"level{level}_relu")(x)
        maps.insert(0, x)
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
        branch, width, 3, prefix, number="2", momentum=momentum
    )
    if stride > 1:
        name = f"{prefix}shortcut_pool"
        x = keras.layers.AveragePooling2D(2, padding="same", name=name)(x)
    if x.shape[-1] != width:
        x = normalized_convolution(x, width, 1, f"{prefix}shortcut_", momentum=momentum)
    x = keras.layers.Add(name=f"{prefix}add")([x, branch])
    return keras.layers.ReLU(name=f"{prefix}relu")(x)
