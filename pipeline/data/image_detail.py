"""How much detail images hold, which may be less than their size in pixels suggests."""

import io
import time
import warnings
from collections.abc import Iterable

import numpy as np
from PIL import Image

SIZES = (32, 48, 64, 96, 128, 160, 224)
"""Sides of square images in pixels."""
_LOST = 0.013  # fraction of an image's variance
_SECONDS = 2.0  # at most, for all images


def needed(images: Iterable[bytes | np.ndarray]) -> int | None:
    """The smallest of `SIZES` to which half of the images can be reduced with hardly any loss.

    Each image is reduced and enlarged again, and compared with the original: images that were
    enlarged from 32 pixels need 32, whatever their size.

    Args:
        images: Encoded files, or uint8 pixels (height, width, 1 or 3). Damaged ones are skipped,
            and after two seconds all others.

    Returns:
        None if no image can be read.
    """
    found, start = [], time.monotonic()
    for image in images:
        try:
            with warnings.catch_warnings(action="ignore"):  # about large images
                found.append(_needed(image))
        except Exception:  # Pillow raises many types for damaged files
            continue
        if time.monotonic() - start > _SECONDS:
            break
    return sorted(found)[len(found) // 2] if found else None


def _needed(image: bytes | np.ndarray) -> int:
    most = (2 * SIZES[-1], 2 * SIZES[-1])
    if isinstance(image, bytes):
        opened: Image.Image = Image.open(io.BytesIO(image))
        opened.draft("L", most)  # decodes a large JPEG at a fraction of its size
    else:
        opened = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
    gray = opened.convert("L")
    gray.thumbnail(most)
    before = np.asarray(gray, np.float32)
    for size in SIZES[:-1]:
        small = gray.resize((size, size), Image.Resampling.BILINEAR)
        after = np.asarray(small.resize(gray.size, Image.Resampling.BICUBIC), np.float32)
        lost = np.square(after - before).mean()
        if size >= max(gray.size) or lost <= _LOST * before.var():
            return size
    return SIZES[-1]
