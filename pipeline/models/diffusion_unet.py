"""A U-Net for diffusion and flow matching, conditioned on time and class."""

import math
from typing import Annotated, Any

import keras
import numpy as np
from keras import ops

from pipeline.config.registry import register
from pipeline.contracts import Metadata
from pipeline.layers.convolution import image_size

_TIMES = 32  # frequencies that describe a time


@register
def diffusion_unet(
    x: Any,
    metadata: Metadata | None = None,
    /,
    *,
    widths: tuple[Annotated[int, (8, None)], ...] = (32, 96, 128),
    blocks: Annotated[int, (1, 8)] = 1,
    heads: Annotated[int, (1, 64)] = 4,
    dropout: Annotated[float, (0, 1)] = 0.0,
) -> keras.KerasTensor:
    """A U-Net of residual blocks for noisy images, with attention in the smallest maps.

    Takes a dictionary of `image` (batch, height, width, channels) of any size, and
    perhaps `time`, float32 (batch,) from 0 to 1, and `class`, int32 (batch,); or images
    alone. Returns a map of the same height and width, (batch, height, width, first of
    `widths`).

    After Dhariwal and Nichol, "Diffusion models beat GANs on image synthesis", NeurIPS
    2021: time and class scale and shift the normalized features of each block. For the
    speed on a CPU, a block has one normalization, over the channels of each pixel
    (Karras et al., "Progressive growing of GANs", ICLR 2018), and ReLU instead of SiLU:
    with group normalization and SiLU as there, a step took three times as long.

    Args:
        x: The inputs of the task.
        metadata: Metadata of the task: `class_names`.
        widths: Channels of each stage; every stage after the first halves height and
            width.
        blocks: Residual blocks of each stage on the way down, and on the way up.
        heads: Heads of attention, in the last stage.
        dropout: Fraction of the features to drop in training.
    """
    parts = x if isinstance(x, dict) and "image" in x else {"image": x}
    images = parts["image"]
    image_size(images)  # refuses other inputs than images
    condition = _condition(parts, metadata or {}, 2 * widths[-1])

    def block(x: keras.KerasTensor, width: int, name: str) -> keras.KerasTensor:
        return _block(x, width, condition, dropout, name)

    x = keras.layers.Conv2D(widths[0], 3, padding="same", name="stem")(images)
    skipped = []
    for stage, width in enumerate(widths, 1):
        if stage > 1:
            shrink = keras.layers.Conv2D(
                width, 3, 2, padding="same", name=f"down{stage}_shrink"
            )
            x = shrink(x)
        for number in range(1, blocks + 1):
            x = block(x, width, f"down{stage}_{number}")
        skipped.append(x)
    skipped.pop()
    x = _attention(x, heads, "attention")
    for number in range(1, blocks + 1):
        x = block(x, widths[-1], f"middle{number}")
    for stage in range(len(widths) - 1, 0, -1):
        skip = skipped.pop()
        # Fewer channels before the map is enlarged: a step is 8% faster.
        x = keras.layers.Conv2D(widths[stage - 1], 1, name=f"up{stage}_narrow")(x)
        # Not `Resizing`, whose gradient XLA does not have.
        enlarge = keras.layers.UpSampling2D(2, name=f"up{stage}_enlarge")
        height, width = skip.shape[1:3]
        join = keras.layers.Concatenate(name=f"up{stage}_join")
        x = join([skip, enlarge(x)[:, :height, :width]])
        for number in range(1, blocks + 1):
            x = block(x, widths[stage - 1], f"up{stage}_{number}")
    return keras.layers.ReLU(name="activation")(_normalized(x))


def _condition(
    parts: dict[str, keras.KerasTensor], metadata: Metadata, size: int
) -> keras.KerasTensor | None:
    """What the blocks are told, (batch, size); None if there is no time."""
    if "time" not in parts:
        return None
    # From 1/4 of a period between 0 and 1 to 256 periods, as sines and cosines.
    rates = 2 * math.pi * np.geomspace(0.25, 256.0, _TIMES)
    angles = ops.expand_dims(parts["time"], -1) * rates.astype(np.float32)
    waves = ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)
    x = keras.layers.Dense(size, activation="silu", name="time_wide")(waves)
    x = keras.layers.Dense(size, name="time_vector")(x)
    if "class" in parts:
        # The last number stands for no class.
        count = len(metadata["class_names"]) + 1
        x += keras.layers.Embedding(count, size, name="class_vectors")(parts["class"])
    return keras.layers.Activation("silu", name="condition")(x)


def _block(
    x: keras.KerasTensor,
    width: int,
    condition: keras.KerasTensor | None,
    dropout: float,
    name: str,
) -> keras.KerasTensor:
    """Two convolutions, the second zero at first, added to their input."""
    old = x
    x = keras.layers.ReLU(name=f"{name}_activation1")(x)
    first = keras.layers.Conv2D(width, 3, padding="same", name=f"{name}_convolution1")
    x = _normalized(first(x))
    if condition is not None:
        moments = keras.layers.Dense(2 * width, name=f"{name}_moments")(condition)
        moments = keras.layers.Reshape((1, 1, 2 * width), name=f"{name}_spread")(
            moments
        )
        scale, shift = ops.split(moments, 2, axis=-1)
        x = x * (1 + scale) + shift
    x = keras.layers.ReLU(name=f"{name}_activation2")(x)
    x = keras.layers.Dropout(dropout, name=f"{name}_dropout")(x)
    second = keras.layers.Conv2D(
        width,
        3,
        padding="same",
        kernel_initializer="zeros",
        name=f"{name}_convolution2",
    )
    if old.shape[-1] != width:
        old = keras.layers.Conv2D(width, 1, name=f"{name}_skip")(old)
    return old + second(x)


def _normalized(x: keras.KerasTensor) -> keras.KerasTensor:
    """The channels of each pixel, divided by their root mean square."""
    power = ops.mean(ops.square(x), axis=-1, keepdims=True)
    return x * ops.rsqrt(power + 1e-3)


def _attention(x: keras.KerasTensor, heads: int, name: str) -> keras.KerasTensor:
    """Attention between all pixels of a map, added to it."""
    height, width, channels = x.shape[1:]
    flat = keras.layers.Reshape((height * width, channels), name=f"{name}_flat")
    pixels = flat(_normalized(x))
    size = max(1, channels // heads)
    layer = keras.layers.MultiHeadAttention(heads, size, name=name)
    square = keras.layers.Reshape((height, width, channels), name=f"{name}_square")
    return x + square(layer(pixels, pixels))
