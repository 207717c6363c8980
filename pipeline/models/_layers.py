"""Layers shared by several models: convolution and pooling that work on
any image size.
"""

import keras

from pipeline.models._fused_batch_norm import FusedBatchNormalization
from pipeline.utils.errors import UsageError


def sides(x: keras.KerasTensor) -> tuple[int, int]:
    """Height and width of feature maps; raises UsageError unless they have
    four axes.
    """
    if len(x.shape) != 4:
        raise UsageError(
            "this model needs images, but the task's input has shape"
            f" {tuple(x.shape[1:])}; choose another --model.name, such as linear"
        )
    return x.shape[1:3]


def in_color(x: keras.KerasTensor, network: str) -> keras.KerasTensor:
    """Images of 3 channels; gray is repeated. `network` is what messages call the
    network.
    """
    sides(x)
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
    if min(sides(x)) < kernel:
        padding = "same"
    return keras.layers.Conv2D(filters, kernel, padding=padding, **options)(x)


def normalized(
    x: keras.KerasTensor,
    filters: int,
    kernel: int,
    place: str,
    stride: int = 1,
    *,
    padding: str = "same",
    number: str = "",
    **options: object,
) -> keras.KerasTensor:
    """A square convolution without bias, and batch normalization; `place` begins their
    names.

    `number` ends the names; the other options are those of the normalization. With
    `same` padding, a side of n pixels becomes ceil(n / stride).
    """
    x = keras.layers.Conv2D(
        filters,
        kernel,
        stride,
        padding=padding,
        use_bias=False,
        kernel_initializer="he_normal",
        name=f"{place}convolution{number}",
    )(x)
    return FusedBatchNormalization(name=f"{place}normalization{number}", **options)(x)


def pool(x: keras.KerasTensor) -> keras.KerasTensor:
    """2x2 max-pooling; maps with a side of one pixel are not changed."""
    return keras.layers.MaxPooling2D(2)(x) if min(sides(x)) >= 2 else x


def normalises_apart(model: keras.Model) -> bool:
    """Whether BatchNormalization uses separate statistics for each replica's part of a
    batch.
    """
    kind = keras.layers.BatchNormalization
    found = [layer for layer in model._flatten_layers() if isinstance(layer, kind)]
    return any(not layer.synchronized for layer in found)
