"""Random brightness, contrast and saturation."""

from typing import Annotated

import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Example
from pipeline.data import seeds as draw
from pipeline.data.augment import pixel_values


@register
def color_jitter(
    batch: Example,
    seeds: tf.Tensor,
    *,
    brightness: Annotated[float, (0, 4)] = 0.4,
    contrast: Annotated[float, (0, 4)] = 0.4,
    saturation: Annotated[float, (0, 4)] = 0.4,
) -> Example:
    """Blends each image with black, then its mean gray, then its grayscale image.

    Howard, arXiv 1312.5402, section 2.2, with the factors of torchvision's ColorJitter:
    uniform from max(0, 1 - strength) to 1 + strength, in steps of 2**-10. After each
    step, integer levels are rounded and clipped as in Pillow; float levels, whose range
    is unknown, are not. Saturation does not change grayscale images.

    Args:
        brightness: Strength of the change in brightness; 0 for none.
        contrast: Strength of the change in contrast.
        saturation: Strength of the change in saturation.
    """
    images = pixel_values.images_of(batch, "color_jitter")
    dtype = images.dtype
    if images.shape[-1] != 3:
        saturation = 0.0
    operations = (
        (brightness, _black),
        (contrast, pixel_values.mean_gray),
        (saturation, pixel_values.gray),
    )
    for number, (strength, degenerate) in enumerate(operations):
        if not strength:
            continue
        factor = draw.between(seeds, max(0.0, 1 - strength), 1 + strength, draw=number)
        values = tf.cast(images, tf.float32)
        blended = pixel_values.blend(
            degenerate(values, dtype.is_integer), values, factor
        )
        images = pixel_values.restore(blended, dtype)
    return {**batch, "image": images}


def _black(values: tf.Tensor, whole: bool) -> float:
    return 0.0
