"""One page of HTML with its pictures inside: no other file, no network, phone or desk."""

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

SIDE = 160
"""Largest height and width of a picture, in pixels."""
_EXACT = 64  # up to this size every pixel is kept; larger pictures are compressed
_STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent) }
body { font: 16px/1.4 system-ui, sans-serif; margin: 1rem auto; max-width: 76rem; padding: 0 1rem }
h2 { border-top: 1px solid var(--line); padding-top: 1rem }
h3 { font-size: 1rem; margin: 1rem 0 .3rem } p { margin: .3rem 0 }
table { border-collapse: collapse } td, th { padding: .1rem .8rem .1rem 0; text-align: left }
th { vertical-align: top }
td { font: .85rem/1.5 ui-monospace, monospace; white-space: pre-wrap }
.row { display: flex; flex-wrap: wrap; gap: .4rem; align-items: center; margin: .3rem 0 }
.row > span { width: 5rem; font-size: .8rem; opacity: .7 }
.row img { width: 6rem; height: 6rem; object-fit: contain; image-rendering: pixelated }
.wide { max-width: 100% }
"""


def page(title: str, parts: Iterable[str], style: str = "") -> str:
    """The whole page; `parts` are HTML, such as the functions below make, `style` more CSS."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{safe(title)}</title><style>{_STYLE}{style}</style>",
            f"<h1>{safe(title)}</h1>",
            *parts,
            "</html>\n",
        ]
    )


def heading(text: object, small: bool = False) -> str:
    """Of a section, or of a part of one."""
    level = 3 if small else 2
    return f"<h{level}>{safe(text)}</h{level}>"


def paragraph(text: object) -> str:
    """Plain text."""
    return f"<p>{safe(text)}</p>"


def table(rows: Iterable[Sequence[object]]) -> str:
    """Rows of cells, the first of which says what the others are."""
    lines = []
    for first, *others in rows:
        cells = "".join(f"<td>{safe(cell)}</td>" for cell in others)
        lines.append(f"<tr><th>{safe(first)}</th>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def row(images: Iterable[np.ndarray], titles: Iterable[object], name: str = "") -> str:
    """Images beside each other.

    Args:
        images: Each (height, width, channels), of any dtype: integers with all their levels,
            floats from 0 to 1 or, where they leave that, from their least to their largest.
        titles: What a mouse that points at each shows.
        name: Stands before them.
    """
    shown = [
        f'<img src="{_encoded(image)}" title="{safe(title)}" alt="{safe(title)}" loading="lazy">'
        for image, title in zip(images, titles, strict=True)
    ]
    label = f"<span>{safe(name)}</span>" if name else ""
    return f'<div class="row">{label}{"".join(shown)}</div>'


def figure(drawn: Any, title: str) -> str:
    """A figure of matplotlib."""
    file = io.BytesIO()
    drawn.savefig(file, format="png", dpi=100)
    source = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return f'<img class="wide" src="{source}" alt="{safe(title)}">'


def safe(text: object) -> str:
    """Text that cannot be taken for HTML; what is no Unicode is replaced."""
    return html.escape(str(text).encode(errors="replace").decode())


def _encoded(image: np.ndarray) -> str:
    """A data URI: PNG, or JPEG of what is too large for the page."""
    from PIL import Image

    levels = _levels(np.asarray(image))
    # Of more channels than a picture has, the first three.
    levels = levels[..., 0] if levels.shape[-1] < 3 else levels[..., :3]
    picture = Image.fromarray(levels)
    kind = "png" if max(picture.size) <= _EXACT else "jpeg"
    picture.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    picture.save(file, kind, quality=90)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


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
