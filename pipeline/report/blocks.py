"""The parts of which the sections of `report.html` consist."""

import base64
import dataclasses
import io
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pipeline.report import pictures
from pipeline.utils.columns import Columns

_LARGE = 100_000  # characters of an SVG beyond which a figure is embedded as pixels
_SHORT = 24  # characters of a cell that is not wrapped
_DPI = 110  # of figures that are embedded as pixels


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph; `is_code` keeps its line breaks. With a `summary`, it is hidden
    until that is clicked.
    """

    kind: ClassVar[str] = "text"
    text: str
    is_code: bool = False
    summary: str = ""


@dataclasses.dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclasses.dataclass(frozen=True)
class TableBlock:
    """A table; columns of numbers are aligned to the right."""

    kind: ClassVar[str] = "table"
    columns: Columns

    @property
    def rows(self) -> list[list[str]]:
        """The cells as texts, numbers with three decimals."""
        return [
            list(map(_cell, row)) for row in zip(*self.columns.values(), strict=True)
        ]

    @property
    def styles(self) -> list[str]:
        """The class of each column in the style sheet: `number`, `short` if its cells
        are not to be wrapped, or none.
        """
        styles = []
        for values in self.columns.values():
            if all(isinstance(value, int | float) for value in values):
                styles.append("number")
            elif all(len(_cell(value)) <= _SHORT for value in values):
                styles.append("short")
            else:
                styles.append("")
        return styles


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Figures side by side, as HTML; `is_paper` if they need a white background."""

    kind: ClassVar[str] = "drawing"
    figures: Sequence[tuple[Markup, bool]]


@dataclasses.dataclass(frozen=True)
class Card:
    """An example: what it looks like, what is said about it, and its name."""

    picture: Markup
    title: str = ""
    color: str = ""
    """The class of the title in the style sheet: `good`, `bad`, or none."""
    caption: str = ""
    is_wide: bool = False


@dataclasses.dataclass(frozen=True)
class Cards:
    """Examples side by side."""

    kind: ClassVar[str] = "cards"
    cards: Sequence[Card]


@dataclasses.dataclass(frozen=True)
class Grid:
    """Cells side by side, or one below the other on narrow screens."""

    kind: ClassVar[str] = "grid"
    cells: Sequence[Sequence["Block"]]


Block = Text | Heading | TableBlock | Drawing | Cards | Grid


def _cell(value: Any) -> str:
    if isinstance(value, bool | str) or value is None:
        return str(value)
    if isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def number(value: float | None) -> str:
    """Three decimals, or two significant digits of what would be 0.000."""
    if value is None:
        return "undefined"
    is_small = 0 < abs(value) < 0.0005
    return f"{value:.2g}" if is_small else f"{value:,.3f}"


def drawing(*figures: Figure) -> Drawing:
    """Figures side by side, which wrap on narrow screens."""
    return Drawing([embed(figure) for figure in figures])


def embed(figure: Figure) -> tuple[Markup, bool]:
    """A figure as HTML, and whether it needs a white background.

    It becomes SVG whose black parts take the color of the page's text, or pixels if it
    contains an image or very many points.
    """
    FigureCanvasAgg(figure)
    if not any(axes.get_images() for axes in figure.axes):
        text = _svg(figure)
        if len(text) < _LARGE:
            return Markup(text), False
    return image("png", pictures.png(figure, _DPI, is_cropped=True)), True


def _svg(figure: Figure) -> str:
    for axes in figure.axes:
        if legend := axes.get_legend():
            legend.set_frame_on(False)  # it is white
    file = io.StringIO()
    as_text = matplotlib.rc_context({"svg.fonttype": "none"})
    with pictures.all_fonts(), as_text:
        figure.savefig(
            file,
            format="svg",
            transparent=True,
            metadata={"Date": None},
            bbox_inches="tight",
        )
    text = file.getvalue()
    text = text[text.index("<svg") :]
    # Several figures in one page must not repeat the ids of groups.
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    points = re.search(r'<svg[^>]*? width="([\d.]+)pt"', text)
    width = round(float(points[1]) * 96 / 72) if points else 480
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = text.replace("<svg", f'<svg style="width:{width}px" role="img"', 1)
    return re.sub(r"(fill|stroke): #000000", r"\1: currentColor", text)


def image(kind: str, content: bytes) -> Markup:
    """An image that is embedded in the page; `kind` is png or jpeg."""
    code = base64.b64encode(content).decode()
    return Markup('<img alt="" src="data:image/{};base64,{}">').format(kind, code)


def pixels(figure: Figure) -> np.ndarray:
    """A drawn figure, uint8 (height, width, 3)."""
    canvas = FigureCanvasAgg(figure)
    with pictures.all_fonts():
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]
