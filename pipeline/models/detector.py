"""A small residual network with a pyramid of features, for boxes."""

from typing import Annotated

import keras

from pipeline.config.registry import register
from pipeline.layers.applications import application_maps
from pipeline.layers.convolution import normalized_convolution
from pipeline.layers.residual_stages import residual_stages


@register
def detector(
    x: keras.KerasTensor,
    *,
    widths: tuple[Annotated[int, (1, None)], ...] = (16, 32, 64, 128, 192),
    blocks: Annotated[int, (1, None)] = 1,
    min_level: Annotated[int, (1, 5)] = 3,
    pyramid_channels: Annotated[int, (1, None)] = 64,
    backbone: str | None = None,
    weights: str | None = None,
    momentum: Annotated[float, (0, 1)] = 0.9,
) -> list[keras.KerasTensor]:
    """A small residual network with a pyramid of features, for boxes.

    Takes (batch, height, width, channels) of any size, returns maps (batch, height / s,
    width / s, `pyramid_channels`), rounded up, for the strides s of the stages from
    `min_level`: 8, 16 and 32 by default.

    Lin et al., "Feature pyramid networks for object detection", CVPR 2017: a coarse map
    is enlarged and added to the next finer one, so that every map sees the whole
    object. The stages are those of `residual`, and may begin with its weights.

    Args:
        x: Images.
        widths: Channels of each stage; the first has stride 2, and every other one
            halves height and width.
        blocks: Number of blocks in each stage.
        min_level: First stage with a map, from 1; 2 finds smaller objects, and takes
            longer.
        pyramid_channels: Channels of the maps.
        backbone: Instead of the residual stages, a network of keras.applications,
            such as `MobileNetV2`, with maps up to stride 32.
        weights: Of the backbone, as for the model `application`: `imagenet`, or an
            `.h5` file. None: random weights.
        momentum: Weight of the old value in the moving mean and variance.
    """
    if backbone is None:
        stages = residual_stages(x, widths, blocks, 2, momentum)
        stages = stages[min(min_level, len(widths)) - 1 :]
    else:
        strides = [2**level for level in range(min_level, 6)]
        stages = application_maps(x, backbone, weights, strides)
    maps: list[keras.KerasTensor] = []
    for level in range(len(stages), 0, -1):
        x = normalized_convolution(
            stages[level - 1], pyramid_channels, 1, f"level{level}_", momentum=momentum
        )
        if maps:
            name = f"level{level}_enlarge"
            # XLA rejects the gradient of resizing in bfloat16 (TensorFlow 2.21).
            resize = keras.layers.Resizing(*x.shape[1:3], dtype="float32", name=name)
            x = keras.layers.Add(name=f"level{level}_add")([x, resize(maps[0])])
        x = keras.layers.ReLU(name=f"level{level}_relu")(x)
        maps.insert(0, x)
    return maps
