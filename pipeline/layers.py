"""Layers shared by several models: convolution and pooling that work on any image size."""

import keras


def convolution(
    x: keras.KerasTensor, filters: int, kernel: int, *, padding: str = "valid", **options: object
) -> keras.KerasTensor:
    """A square convolution; zero-padded where the map is smaller than the kernel.

    Args:
        x: Maps of shape (batch, height, width, channels).
        filters: Channels of the result.
        kernel: Height and width of the kernel.
        padding: `valid` (each side shrinks by `kernel` - 1) or `same`.
        options: Further arguments of `keras.layers.Conv2D`.
    """
    if min(x.shape[1:3]) < kernel:
        padding = "same"
    return keras.layers.Conv2D(filters, kernel, padding=padding, **options)(x)


def pool(x: keras.KerasTensor) -> keras.KerasTensor:
    """Largest of each 2x2 block; halves height and width, and leaves maps of one pixel a side."""
    return keras.layers.MaxPooling2D(2)(x) if min(x.shape[1:3]) >= 2 else x
