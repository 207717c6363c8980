"""Many small images on one picture, and its file."""

import io

import numpy as np

_SHOWN = 56  # pixels of a side to which small images are enlarged
_GAP = 2


def sheet(images: np.ndarray, columns: int) -> np.ndarray:
    """Images side by side in rows, uint8 (height, width, 3), with gaps between them.

    Small images are enlarged by a whole factor.
    """
    factor = max(1, _SHOWN // max(images.shape[1:3]))
    images = images[..., :1] if images.shape[-1] < 3 else images[..., :3]
    images = images.repeat(factor, axis=1).repeat(factor, axis=2)
    count, height, width, _ = images.shape
    rows = -(-count // columns)
    size = (rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, 3)
    page = np.full(size, 255, np.uint8)
    for number, image in enumerate(images):
        top = number // columns * (height + _GAP)
        left = number % columns * (width + _GAP)
        page[top : top + height, left : left + width] = image
    return page


def png(picture: np.ndarray) -> bytes:
    """The file of a picture, uint8 (height, width, 3)."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "png")
    return file.getvalue()
