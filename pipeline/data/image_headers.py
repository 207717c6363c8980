"""Sizes of encoded images, read from their headers alone."""

import io
import warnings
from collections.abc import Iterable

from pipeline.utils.image_formats import MOST_PIXELS

_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")


def common_shape(images: Iterable[bytes]) -> tuple[int | None, int | None, int | None]:
    """The common (height, width, channels) of all images, upright; None where images differ.

    Channels are 1 if all images are grayscale, else 3. Images that are damaged, or have no pixels
    or too many, are skipped: decoding or cleaning reports them. The beginning of each file is
    enough.
    """
    sizes, gray = set(), True
    for image in images:
        height, width, is_gray = _shape(image)
        if not 0 < height * width <= MOST_PIXELS:
            continue
        sizes.add((height, width))
        gray &= is_gray
        if len(sizes) > 1:
            return None, None, None
    for height, width in sizes:
        return height, width, 1 if gray else 3
    return None, None, None


def _shape(image: bytes) -> tuple[int, int, bool]:
    """(height, width, whether the image is grayscale); zeros for a damaged image."""
    from PIL import Image

    try:
        with (
            warnings.catch_warnings(action="ignore"),  # about large images
            Image.open(io.BytesIO(image), formats=_FORMATS) as opened,
        ):
            turned = opened.format in ("JPEG", "MPO") and opened.getexif().get(274, 1) >= 5
            height, width = opened.size if turned else opened.size[::-1]
            return height, width, opened.mode in ("1", "L", "LA") or opened.mode.startswith("I")
    except Exception:  # Pillow raises many types of exceptions for damaged files
        return 0, 0, False
