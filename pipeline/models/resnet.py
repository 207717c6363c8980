"""Residual networks: the small ones for CIFAR, ResNet-18 for CIFAR, and ResNet-50."""

from typing import Annotated, Literal

import keras

from pipeline.config.registry import register
from pipeline.layers.convolution import image_size, normalized_convolution

# Blocks of each stage; every stage after the first halves the maps and doubles the
# channels.
_STAGES = {18: (2, 2, 2, 2), 20: (3, 3, 3), 50: (3, 4, 6, 3), 56: (9, 9, 9)}
_EPSILON = 1e-5  # as in torchvision; Keras's default is 1e-3


@register
def resnet(
    x: keras.KerasTensor,
    *,
    depth: Literal[18, 20, 50, 56] = 20,
    momentum: Annotated[float, (0, 1)] = 0.9,
) -> keras.KerasTensor:
    """Residual networks: the small ones for CIFAR, ResNet-18 for CIFAR, and ResNet-50.

    Takes (batch, height, width, channels), returns (batch, 64), (batch, 512) or (batch,
    2048).

    He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016.
    Convolutions have no bias and are followed by batch normalization; kernels are
    initialized as in He et al., "Delving Deep into Rectifiers", ICCV 2015; global
    average pooling ends the network.

    - 20 and 56: section 4.2 for 32x32 images, stages of 16, 32 and 64 channels.
      Shortcuts have no weights: at the start of a stage they take every other pixel,
      and zeros fill the new channels (option A). 0.27 and 0.85 million parameters.
    - 18: table 1 (64 to 512 channels), with the stem that is usual for CIFAR: one 3x3
      convolution without pooling. At the start of a stage the shortcut is a 1x1
      convolution with batch normalization (option B). 11.2 million parameters.
    - 50: table 1 for 224x224 images: 7x7 convolution and max-pooling in the stem,
      bottlenecks, option B. Version 1.5, as in most published results: the stride is in
      the 3x3 convolution of a bottleneck, not in the first 1x1 convolution. 25.6
      million parameters with 1,000 classes.

    Layers are named by position (`stem_convolution`, `stage2_block1_convolution1`), so
    that a prefix selects the stem, a stage or a block.

    Args:
        x: Images.
        depth: Number of layers with weights, including the head but not the shortcuts.
        momentum: Weight of the old value in the moving mean and variance; Keras's
            default of 0.99 adapts slowly (see `convnet`). PyTorch's 0.1 is the weight
            of the new value.
    """
    image_size(x)  # refuses other inputs than images
    stem = 16 if len(_STAGES[depth]) == 3 else 64
    if depth == 50:
        x = _convolution(x, stem, 7, "stem_", momentum, 2)
    else:
        x = _convolution(x, stem, 3, "stem_", momentum)
    x = keras.layers.ReLU(name="stem_relu")(x)
    if depth == 50:
        # Zeros are neutral after a ReLU.
        x = keras.layers.ZeroPadding2D(1, name="stem_pool_padding")(x)
        x = keras.layers.MaxPooling2D(3, 2, name="stem_pool")(x)
    for stage, blocks in enumerate(_STAGES[depth]):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            prefix = f"stage{stage + 1}_block{block + 1}_"
            x = _block(x, depth, stem * 2**stage, stride, prefix, momentum)
    return keras.layers.GlobalAveragePooling2D(name="average")(x)


def _block(
    x: keras.KerasTensor,
    depth: int,
    filters: int,
    stride: int,
    prefix: str,
    momentum: float,
) -> keras.KerasTensor:
    """ReLU(shortcut + branch); the names of the layers begin with `prefix`.

    The branch is two 3x3 convolutions, or the bottleneck of depth 50.
    """
    plan = [(filters, 3, stride), (filters, 3, 1)]
    if depth == 50:
        plan = [(filters, 1, 1), (filters, 3, stride), (4 * filters, 1, 1)]
    branch = x
    for number, (width, kernel, step) in enumerate(plan, 1):
        branch = _convolution(
            branch, width, kernel, prefix, momentum, step, number=str(number)
        )
        if number < len(plan):
            branch = keras.layers.ReLU(name=f"{prefix}relu{number}")(branch)
    width = plan[-1][0]
    if depth in (20, 56):
        x = _option_a(x, width, stride, prefix)
    elif stride > 1 or x.shape[-1] != width:
        x = _convolution(x, width, 1, f"{prefix}shortcut_", momentum, stride)
    x = keras.layers.Add(name=f"{prefix}add")([x, branch])
    return keras.layers.ReLU(name=f"{prefix}relu")(x)


def _option_a(
    x: keras.KerasTensor, width: int, stride: int, prefix: str
) -> keras.KerasTensor:
    """A shortcut without weights: subsamples pixels, and adds channels of zeros."""
    if stride > 1:
        x = keras.layers.MaxPooling2D(1, stride, name=f"{prefix}shortcut_pixels")(x)
    missing = width - x.shape[-1]
    return keras.ops.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else x


def _convolution(
    x: keras.KerasTensor,
    filters: int,
    kernel: int,
    prefix: str,
    momentum: float,
    stride: int = 1,
    *,
    number: str = "",
) -> keras.KerasTensor:
    """Convolution and batch normalization; n pixels become ceil(n / stride)."""
    if stride > 1 and kernel > 1:
        # TensorFlow's "same" pads an even side on the right only: the kernels would not
        # be centered on the pixels of the shortcut.
        x = keras.layers.ZeroPadding2D(kernel // 2, name=f"{prefix}padding{number}")(x)
    return normalized_convolution(
        x,
        filters,
        kernel,
        prefix,
        stride,
        padding="same" if stride == 1 else "valid",
        number=number,
        momentum=momentum,
        epsilon=_EPSILON,
    )
