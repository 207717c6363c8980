"""Image files of every kind that people have."""

import io

import numpy as np
from PIL import Image

PIXELS = np.random.default_rng(5).integers(0, 256, (40, 30, 3), np.uint8)


def encoded(kind="PNG", mode="RGB", **options):
    """The content of an image file."""
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, kind, **options)
    return file.getvalue()


def _sixteen_bits():
    file = io.BytesIO()
    Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257).save(file, "PNG")
    return file.getvalue()


_EXIF = Image.Exif()
_EXIF[0x0112] = 6
GOOD = {
    "cmyk.jpg": encoded("JPEG", "CMYK"),
    "turned.JPEG": encoded("JPEG", exif=_EXIF),
    "grey.png": encoded(mode="L"),
    "16 bits.png": _sixteen_bits(),
    "alpha.png": encoded(mode="RGBA"),
    "palette.gif": encoded("GIF", "P"),
    "b.bmp": encoded("BMP"),
    "w.webp": encoded("WEBP", lossless=True),
    "a page that is a png.jpg": encoded(),
}


def write_good(root):
    """Writes the good files into folders of two classes."""
    for name in ("ant", "bee"):
        (root / name).mkdir(parents=True)
    for number, (name, content) in enumerate(GOOD.items()):
        (root / ("ant", "bee")[number % 2] / name).write_bytes(content)
    return root
