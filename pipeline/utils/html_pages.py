"""HTML pages with embedded pictures: one file that loads nothing else."""

import base64
import io
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

SIDE = 160
"""Largest height and width of an image, in pixels."""
_LOSSLESS = 64  # larger images are written as JPEG


class Picture(NamedTuple):
    """An embedded image."""

    source: str | None  # a data URI; None shows an empty frame
    title: str


class Row(NamedTuple):
    """Images side by side, between a label and a text."""

    pictures: Sequence[Picture]
    label: str = ""
    text: str = ""


class PageSection(NamedTuple):
    """A heading, a text, rows of images, a wide figure, and other examples."""

    heading: str
    text: str = ""
    rows: Sequence[Row] = ()
    figure: str | None = None
    """A data URI."""
    cards: Sequence[tuple[str, str]] = ()
    """Names of examples, and HTML that shows them and is not escaped."""


def page(
    title: str,
    sections: Iterable[PageSection],
    notes: Iterable[str] = (),
    table: Iterable[tuple[str, str]] = (),
) -> str:
    """Renders a page of notes, a table of names and texts, and sections.

    All texts are escaped.
    """
    import jinja2

    loader = jinja2.PackageLoader("pipeline.utils")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    template = environment.get_template("page.html.j2")
    text = template.render(
        title=title, sections=list(sections), notes=notes, table=table
    )
    return text.encode(errors="replace").decode()  # a file name need not be Unicode


def pixels(array: np.ndarray) -> np.ndarray:
    """An image (height, width, channels) of any dtype as uint8, gray (height, width) or
    RGB.

    Values of any dtype but uint8 are scaled from their minimum to their maximum. If
    there are more than 3 channels, the first three are shown.
    """
    if array.dtype != np.uint8:
        values = array.astype(np.float64)
        low = values.min()
        span = max(values.max() - low, 1e-12)
        array = ((values - low) / span * 255).round().astype(np.uint8)
    return array[..., 0] if array.shape[-1] < 3 else array[..., :3]


def thumbnail(content: bytes, side: int = 256) -> np.ndarray | None:
    """The picture in the bytes of a file, turned upright, as `pixels` shows it.

    Its longer side has at most `side` pixels. None if Pillow cannot show it.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(content)) as opened:
            opened.draft("RGB", (side, side))  # a JPEG is decoded at a smaller scale
            picture = ImageOps.exif_transpose(opened)
            if picture.mode not in ("L", "RGB", "RGBA", "P", "CMYK"):
                return None
            picture = picture.convert("L" if picture.mode == "L" else "RGB")
            picture.thumbnail((side, side))
            return np.asarray(picture)
    except Exception:  # Pillow raises many types for a damaged file
        return None


def image(array: np.ndarray) -> str:
    """The data URI of an image, as `pixels` shows it."""
    from PIL import Image

    picture = Image.fromarray(pixels(array))
    kind = "png" if max(picture.size) <= _LOSSLESS else "jpeg"
    picture.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    picture.save(file, kind, quality=90)
    return _data_uri(kind, file.getvalue())


def figure(drawing: Any) -> str:
    """The data URI of a figure of matplotlib."""
    file = io.BytesIO()
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # about fonts
        drawing.savefig(file, format="png", dpi=100)
    return _data_uri("png", file.getvalue())


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
