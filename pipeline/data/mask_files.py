"""Masks in files: any format of Pillow, read as PNG files of numbers or of colors."""

import io
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pipeline.utils.errors import UsageError
from pipeline.utils.image_formats import SIGNATURES

DAMAGED = b"damaged: no mask"
"""What `to_png` returns for a file that it cannot read; decoders refuse it."""
IGNORED = 255
"""The value of pixels without a class, as in PASCAL VOC."""
COLORS = 1 << 24
"""Added to 0xRRGGBB for the value of a pixel that is not gray."""
_GRAY, _RGB = 0, 2  # color types of PNG
_THRESHOLD = 128  # of JPEGs, whose edges are blurred
_MAX_BLURRED = 0.05  # of the pixels of a JPEG of two classes
_MAX_GRAY = 255
_RGB_LINE = re.compile(r"\s*(?P<name>[^:#,]+)[:,]\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)")

VOC_CLASSES = (
    "background",
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)
"""The classes of the masks of PASCAL VOC."""


def to_png(content: bytes, in_colors: bool = False) -> bytes:
    """The content of a PNG with 8 bits of gray, or of colors, and the same values.

    Of a palette, the values are the indices, or its colors if `in_colors` or if all of
    them are gray. A JPEG is black or white. `DAMAGED` for a file that cannot be read,
    or has larger values.
    """
    is_png = content.startswith(SIGNATURES["PNG"])
    if is_png and content[24:26] in (bytes([8, _GRAY]), bytes([8, _RGB])):
        return content
    try:
        with warnings.catch_warnings(action="ignore"):
            picture = _plain(Image.open(io.BytesIO(content)), in_colors)
            file = io.BytesIO()
            picture.save(file, "PNG", compress_level=1)
            return file.getvalue()
    except Exception:  # Pillow raises many types of exceptions for damaged files
        return DAMAGED


def _plain(picture: Image.Image, in_colors: bool) -> Image.Image:
    """A picture in the mode L or RGB."""
    if picture.format in ("JPEG", "MPO"):
        colors = np.asarray(picture.convert("RGB"), np.int16)
        gray = colors.mean(axis=2)
        is_colored = np.ptp(colors, axis=2) > _THRESHOLD // 2
        is_between = np.abs(gray - _THRESHOLD) < _THRESHOLD // 2
        if max(is_colored.mean(), is_between.mean()) > _MAX_BLURRED:
            raise ValueError("more than two classes")
        return Image.fromarray((gray >= _THRESHOLD).astype(np.uint8) * _MAX_GRAY)
    if picture.mode == "P" and not in_colors:
        if _has_grays(picture):
            return picture.convert("L")
        return Image.frombytes("L", picture.size, picture.tobytes())
    if picture.mode.startswith("I") or picture.mode == "F":
        values = np.asarray(picture)
        if values.min() < 0 or values.max() > _MAX_GRAY or (values % 1).any():
            raise ValueError("not whole numbers from 0 to 255")
        return Image.fromarray(values.astype(np.uint8))
    is_gray = picture.mode in ("1", "L", "LA", "La")
    return picture.convert("L" if is_gray else "RGB")


def picture(values: Any) -> Image.Image:
    """A picture of class numbers (height, width), with a color for each class."""
    mask = Image.fromarray(np.array(values, np.uint8))
    palette = np.zeros((256, 3), np.uint8)  # of PASCAL VOC
    numbers = np.arange(256)
    for bit in range(24):
        palette[:, bit % 3] |= ((numbers >> bit & 1) << 7 - bit // 3).astype(np.uint8)
    mask.putpalette(palette.tobytes())
    return mask


def _has_grays(picture: Image.Image) -> bool:
    """Whether a palette only lists the gray values of a mask, as in GIF files."""
    palette = np.array(picture.getpalette(), np.uint8).reshape(-1, 3)
    used = palette[np.unique(np.asarray(picture))]
    is_distinct = len(np.unique(used[:, 0])) == len(used)
    return bool((palette == palette[:, :1]).all() and is_distinct)


def have_palettes_in_common(paths: Iterable[str]) -> bool:
    """Whether an index means the same color in all palettes of these files."""
    first = b""
    for path in paths:
        try:
            with Image.open(path) as image:
                palette = image.palette.tobytes() if image.palette else b""
        except Exception:  # as above; decoding reports it
            continue
        size = min(len(first), len(palette))
        if first[:size] != palette[:size]:
            return False
        first = max(first, palette, key=len)
    return True


def classes(
    folder: Path, names: tuple[str, ...] | None
) -> tuple[tuple[str, ...] | None, tuple[int, ...]]:
    """The names of the classes, by default those of a table of colors in a folder, and
    their values; None and empty without them.

    The table is `labelmap.txt` of CVAT, with lines `name:red,green,blue`, or
    `class_dict.csv` with `name,r,g,b`. Raises UsageError if it has not a line for each
    of the names.
    """
    file = folder / "labelmap.txt"
    if not file.is_file():
        file = folder / "class_dict.csv"
    if not file.is_file():
        return names or None, ()
    colors = {}
    lines = file.read_text("utf-8-sig", errors="replace").splitlines()
    for match in filter(None, map(_RGB_LINE.match, lines)):
        red, green, blue = (int(value) for value in match.groups()[1:])
        colors[match["name"].strip()] = color_value(red, green, blue)
    if len({*colors.values()}) < max(len(colors), 2):
        raise UsageError(
            f"{file} must have a line for each class, such as road:128,64,128, and no"
            " color twice; correct it"
        )
    if names and len(names) != len(colors):
        raise UsageError(
            f"--source.class-names has {len(names)} names; {file} has {len(colors)}"
        )
    return names or tuple(colors), tuple(colors.values())


def color_value(red: int, green: int, blue: int) -> int:
    """The value of a pixel of a color: gray itself, or `COLORS` and 0xRRGGBB."""
    if red == green == blue:
        return red
    return COLORS | red << 16 | green << 8 | blue


def describe_values(values: Sequence[int]) -> list[str]:
    """Values in words: `255`, or `#ff8000` if one of them is a color."""
    if max(values, default=0) < COLORS:
        return [str(value) for value in values]
    colors = [
        value - COLORS if value >= COLORS else value * 0x10101 for value in values
    ]
    return [f"#{color:06x}" for color in colors]
