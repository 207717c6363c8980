"""A small U-Net: an encoder and a decoder for a class of each pixel."""

from typing import Annotated

import keras

from pipeline.config.registry import register
from pipeline.layers.convolution import image_size, normalized_convolution


@register
def unet(
    x: keras.KerasTensor,
    *,
    widths: tuple[Annotated[int, (1, None)], ...] = (32, 64, 128),
    momentum: Annotated[float, (0, 1)] = 0.9,
) -> keras.KerasTensor:
    """A small U-Net, for masks.

    Takes (batch, height, width, channels) of any size, returns a map of the same height
    and width, (batch, height, width, first of `widths`).

    Ronneberger, Fischer, Brox, "U-Net: convolutional networks for biomedical image
    segmentation", MICCAI 2015: each stage has two 3x3 convolutions; stages are joined
    by max-pooling on the way down, and by upsampling and the features of that size on
    the way up. Unlike there, convolutions pad their input and are followed by batch
    normalization, and upsampling is bilinear.

    Args:
        x: Images.
        widths: Channels of each stage; every stage after the first halves height and
            width.
        momentum: Weight of the old value in the moving mean and variance.
    """
    image_size(x)  # refuses other inputs than images
    skipped = []
    for stage, width in enumerate(widths, 1):
        if stage > 1:
            skipped.append(x)
            pool = keras.layers.MaxPooling2D(
                2, padding="same", name=f"down{stage}_pool"
            )
            x = pool(x)
        x = _stage(x, width, f"down{stage}_", momentum)
    for stage in range(len(widths) - 1, 0, -1):
        skip = skipped.pop()
        height, width = skip.shape[1:3]
        # XLA rejects the gradient of resizing in bfloat16 (TensorFlow 2.21).
        resize = keras.layers.Resizing(
            height, width, dtype="float32", name=f"up{stage}_resize"
        )
        x = keras.layers.Concatenate(name=f"up{stage}_join")([skip, resize(x)])
        x = _stage(x, widths[stage - 1], f"up{stage}_", momentum)
    return x


def _stage(
    x: keras.KerasTensor, width: int, prefix: str, momentum: float
) -> keras.KerasTensor:
    for number in ("1", "2"):
        x = normalized_convolution(
            x, width, 3, prefix, number=number, momentum=momentum
        )
        x = keras.layers.ReLU(name=f"{prefix}relu{number}")(x)
    return x
