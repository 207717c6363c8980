"""Draws the predicted boxes of an image on the image."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont, ImageOps

# Of the classes, in turn: colors that differ in lightness, too.
_COLORS = ("#ff3030", "#30a0ff", "#40e040", "#ffc000", "#d060ff", "#00e0e0", "#ff8000")


def draw(file: Path, record: Mapping[str, Any]) -> Image.Image:
    """The upright image with its boxes; the record is that of `file_predictions`."""
    with Image.open(file) as original:
        picture = ImageOps.exif_transpose(original).convert("RGB")
    canvas = ImageDraw.Draw(picture)
    size = max(10, max(picture.size) // 50)
    font = ImageFont.load_default(size)
    width = max(2, size // 6)
    numbers = record["classes"]
    names = record.get("labels") or numbers
    for corners, score, number, name in zip(
        record["boxes"], record["scores"], numbers, names, strict=True
    ):
        color = _COLORS[number % len(_COLORS)]
        left, top, right, bottom = corners
        box = (left, top, max(right - 1, left), max(bottom - 1, top))
        canvas.rectangle(box, outline=color, width=width)
        text = f"{name} {score:.2f}"
        place = (
            max(min(left + width, picture.width - font.getlength(text)), 0),
            max(top - size - 2, 0),
        )
        canvas.rectangle(canvas.textbbox(place, text, font), fill=color)
        canvas.text(place, text, fill="black", font=font)
    return picture
