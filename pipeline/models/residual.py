"""A compact residual network for photographs, for fast training on CPUs and GPUs."""

from typing import Annotated

import keras

from pipeline.config.registry import register
from pipeline.layers.residual_stages import residual_stages


@register
def residual(
    x: keras.KerasTensor,
    *,
    widths: tuple[Annotated[int, (1, None)], ...] = (64, 128, 256),
    blocks: Annotated[int, (1, None)] = 2,
    stem_stride: Annotated[int, (1, 4)] = 2,
    momentum: Annotated[float, (0, 1)] = 0.9,
) -> keras.KerasTensor:
    """A compact residual network for photographs, built for fast training on CPUs and
    GPUs.

    Takes (batch, height, width, channels) of any size, returns (batch, last of
    `widths`).

    He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016:
    blocks of two 3x3 convolutions, each with batch normalization, and He's
    initialization. As in ResNet-D (He et al., "Bag of Tricks for Image Classification",
    CVPR 2019), a shortcut into the next stage averages 2x2 pixels before its 1x1
    convolution, and the last normalization of a block starts at zero, so that a block
    starts as its shortcut. Global average pooling ends the network. With the defaults,
    2.8 million parameters.

    `FusedBatchNormalization` normalizes in one operation; with bfloat16 on a CPU that
    has it, a step is several times as fast as with Keras's layer in float32.

    Args:
        x: Images.
        widths: Channels of each stage; every stage after the first halves height and
            width.
        blocks: Number of blocks in each stage.
        stem_stride: Stride of the first convolution: 2, or 1 for images of about 32
            pixels.
        momentum: Weight of the old value in the moving mean and variance.
    """
    *_, x = residual_stages(x, widths, blocks, stem_stride, momentum)
    return keras.layers.GlobalAveragePooling2D(name="average")(x)
