"""Convolution and pooling for images of any size, used by several models."""

import keras

from pipeline.layers.batch_normalization import FusedBatchNormalization
from pipeline.utils.errors import UsageError


def image_size(x: keras.KerasTensor) -> tuple[int, int]:
    """Returns height and width of images or maps; UsageError for other inputs."""
    if isinstance(x, dict):
        raise UsageError(
            f"this model needs images, but the task's inputs are {', '.join(x)}; choose"
            " another --model.name, such as mlp, or diffusion_unet for generation"
        )
    if len(x.shape) != 4:
        raise UsageError(
            "this model needs images, but the task's input has shape"
            f" {tuple(x.shape[1:])}; choose another --model.name, such as mlp"
        )
    return x.shape[1:3]


def to_rgb(x: keras.KerasTensor, network: str) -> keras.KerasTensor:
    """Repeats the channel of gray images. `network` is its name in error messages."""
    image_size(x)
    channels = x.shape[-1]
    if channels not in (1, 3):
        raise UsageError(f"{network} needs images of 1 or 3 channels; got {channels}")
    if channels == 1:
        x = keras.layers.Concatenate(dtype="float32", name="gray_as_color")([x, x, x])
    return x


def convolution(
    x: keras.KerasTensor,
    filters: int,
    kernel: int,
    *,
    padding: str = "valid",
    **options: object,
) -> keras.KerasTensor:
    """A square convolution, zero-padded if the map is smaller than the kernel.

    Takes feature maps (batch, height, width, channels). With the padding `valid`, each
    side shrinks by `kernel` - 1. `options` are further arguments of
    `keras.layers.Conv2D`.
    """
    if min(image_size(x)) < kernel:
        padding = "same"
    return keras.layers.Conv2D(filters, kernel, padding=padding, **options)(x)


def normalized_convolution(
    x: keras.KerasTensor,
    filters: int,
    kernel: int,
    prefix: str,
    stride: int | tuple[int, int] = 1,
    *,
    padding: str = "same",
    number: str = "",
    **options: object,
) -> keras.KerasTensor:
    """A square convolution without bias, followed by batch normalization.

    The names of both layers begin with `prefix` and end in `number`. `options` are
    further arguments of the normalization. With the padding `same`, a side of n pixels
    becomes ceil(n / stride).
    """
    x = keras.layers.Conv2D(
        filters,
        kernel,
        stride,
        padding=padding,
        use_bias=False,
        kernel_initializer="he_normal",
        name=f"{prefix}convolution{number}",
    )(x)
    return FusedBatchNormalization(name=f"{prefix}normalization{number}", **options)(x)


def pool(x: keras.KerasTensor) -> keras.KerasTensor:
    """Applies 2x2 max-pooling, unless a side has a single pixel."""
    return keras.layers.MaxPooling2D(2)(x) if min(image_size(x)) >= 2 else x
