"""TIFF images, which Pillow converts to PNG at reading: TensorFlow decodes none."""

import io
import warnings

import numpy as np
from PIL import Image

SUFFIXES = (".tif", ".tiff")
DAMAGED = b"damaged: no TIFF"
"""What `to_png` returns for a file that it cannot convert; decoders refuse it."""
_MAX = 2**16 - 1


def to_png(content: bytes) -> bytes:
    """The content of a PNG with the same pixels, of several pages the first; gray with
    16 bits if the file has more than 8 of them. `DAMAGED` for a damaged file, floats,
    and numbers of more than 16 bits.
    """
    file = io.BytesIO()
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(io.BytesIO(content), formats=("TIFF",)) as picture,
        ):
            if picture.mode.startswith("I"):
                values = np.asarray(picture)  # in any order of bytes
                if values.min() < 0 or values.max() > _MAX:
                    return DAMAGED
                plain = Image.fromarray(values.astype(np.uint16))
            elif picture.mode == "F":
                return DAMAGED  # of an unknown range
            else:
                is_gray = picture.mode in ("1", "L", "LA")
                plain = picture.convert("L" if is_gray else "RGB")
            plain.save(file, "PNG", compress_level=1)
    except Exception:  # Pillow raises many types of exceptions for damaged files
        return DAMAGED
    return file.getvalue()


def is_deep(content: bytes) -> bool:
    """Whether an image has more than 8 bits for each value."""
    try:
        with Image.open(io.BytesIO(content), formats=("TIFF",)) as picture:
            return picture.mode.startswith("I")
    except Exception:  # as above
        return False
