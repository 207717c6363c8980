"""HTML pages with embedded pictures: one file that loads nothing else."""

import base64
import io
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

SIDE = 160
"""Largest height and width of a picture, in pixels."""
_LOSSLESS = 64  # larger pictures are written as JPEG


class Picture(NamedTuple):
    """An embedded picture; the lines of its caption are below it."""

    source: str | None  # a data URI; None shows an empty frame
    title: str
    caption: Sequence[str] = ()


class Row(NamedTuple):
    """Pictures side by side, between a label and a text."""

    pictures: Sequence[Picture]
    label: str = ""
    text: str = ""


class Section(NamedTuple):
    """A heading, a text, and rows of pictures."""

    heading: str
    text: str = ""
    rows: Sequence[Row] = ()
    layout: str = "rows"  # or `cards` in a grid, or `wide` pictures
    small: bool = False  # a subsection of the section before


def page(
    title: str,
    sections: Iterable[Section],
    notes: Iterable[str] = (),
    table: Iterable[tuple[str, str]] = (),
) -> str:
    """Renders a page; all texts are escaped.

    Args:
        title: Title of the page.
        sections: Its contents.
        notes: Paragraphs below the title.
        table: Rows of a name and a text, below the notes.
    """
    import jinja2

    loader = jinja2.PackageLoader("pipeline.utils")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    template = environment.get_template("page.html.j2")
    text = template.render(title=title, sections=list(sections), notes=notes, table=table)
    return text.encode(errors="replace").decode()  # a file name need not be Unicode


def data_uri(contents: bytes, kind: str = "png") -> str:
    """A file as a data URI."""
    return f"data:image/{kind};base64,{base64.b64encode(contents).decode()}"


def figure(drawn: Any) -> str:
    """The data URI of a figure of matplotlib."""
    file = io.BytesIO()
    drawn.savefig(file, format="png", dpi=100)
    return data_uri(file.getvalue())


def image(array: np.ndarray) -> str:
    """The data URI of an image (height, width, channels) of any dtype.

    Integers are shown with all their levels; floats from 0 to 1 or, if they exceed this range, from
    their minimum to their maximum. Images of more than 3 channels show the first three.
    """
    from PIL import Image

    levels = _levels(np.asarray(array))
    levels = levels[..., 0] if levels.shape[-1] < 3 else levels[..., :3]
    picture = Image.fromarray(levels)
    kind = "png" if max(picture.size) <= _LOSSLESS else "jpeg"
    picture.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    picture.save(file, kind, quality=90)
    return data_uri(file.getvalue(), kind)


def _levels(image: np.ndarray) -> np.ndarray:
    if image.dtype == np.uint8:
        return image
    values = image.astype(np.float64)
    low, high = 0.0, 1.0
    if image.dtype.kind in "iu":
        high = float(np.iinfo(image.dtype).max)
    elif values.size and not (values.min() >= 0 and values.max() <= 1):
        low, high = values.min(), max(values.max(), values.min() + 1e-12)
    return np.clip((values - low) / (high - low) * 255, 0, 255).round().astype(np.uint8)
