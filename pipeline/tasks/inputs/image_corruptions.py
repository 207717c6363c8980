"""What may go wrong with photographs, at three strengths.

Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions
and perturbations", ICLR 2019: five of their corruptions at the severities 1, 3 and 5 of
ImageNet-C. The blur is relative to the size of the image, but at least as strong as in
CIFAR-10-C.
"""

import io
from collections.abc import Callable

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

_SIDE = 224  # pixels, for which the blur is given
_NOISE = (0.08, 0.18, 0.38)  # standard deviation, of pixels from 0 to 1
_BLUR = (1.0, 3.0, 6.0)  # standard deviation in pixels
_MIN_BLUR = (0.4, 0.7, 1.0)
_BRIGHTNESS = (0.1, 0.3, 0.5)  # added to pixels from 0 to 1
_CONTRAST = (0.4, 0.2, 0.05)  # factor of the distance from the mean
_QUALITY = (25, 15, 7)  # of JPEG


def noise(images: np.ndarray, strength: int) -> np.ndarray:
    """Adds normal noise; images are uint8 (batch, height, width, channels), as in all
    functions of this file.
    """
    random = np.random.default_rng(0)
    added = random.standard_normal(images.shape, np.float32)
    return _pixels(images / np.float32(255) + added * _NOISE[strength - 1])


def blur(images: np.ndarray, strength: int) -> np.ndarray:
    """Blurs with a Gaussian kernel."""
    deviation = _BLUR[strength - 1] * min(images.shape[1:3]) / _SIDE
    deviation = max(deviation, _MIN_BLUR[strength - 1])
    return gaussian_filter(images, (0, deviation, deviation, 0))


def brightness(images: np.ndarray, strength: int) -> np.ndarray:
    """Makes all pixels brighter."""
    return _pixels(images / np.float32(255) + _BRIGHTNESS[strength - 1])


def contrast(images: np.ndarray, strength: int) -> np.ndarray:
    """Moves all pixels towards the mean of their channel."""
    values = images / np.float32(255)
    means = values.mean(axis=(1, 2), keepdims=True)
    return _pixels((values - means) * _CONTRAST[strength - 1] + means)


def jpeg(images: np.ndarray, strength: int) -> np.ndarray:
    """Writes and reads each image as JPEG."""
    results = np.empty_like(images)
    for image, result in zip(images, results, strict=True):
        file = io.BytesIO()
        squeezed = image[..., 0] if image.shape[-1] == 1 else image
        Image.fromarray(squeezed).save(file, "jpeg", quality=_QUALITY[strength - 1])
        with Image.open(file) as opened:
            result[:] = np.asarray(opened).reshape(image.shape)
    return results


ALL: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "noise": noise,
    "blur": blur,
    "brightness": brightness,
    "contrast": contrast,
    "jpeg": jpeg,
}


def _pixels(values: np.ndarray) -> np.ndarray:
    """Values from 0 to 1 as uint8."""
    return (values.clip(0, 1) * 255).round().astype(np.uint8)
