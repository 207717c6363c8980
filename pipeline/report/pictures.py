"""Figures of a run: its curves, its worst answers, and the plots of its task."""

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import MaxNLocator

from pipeline.utils import files
from pipeline.utils.console import say, shortened
from pipeline.utils.errors import reason

if TYPE_CHECKING:  # curves need no TensorFlow
    from pipeline.report.results import Evaluation

CURVES, MISTAKES = "curves.png", "mistakes.png"
SHOWN, _COLUMNS = 24, 6  # examples in a figure, and in a row
_FONT = "DejaVu Sans"
_HIDDEN = ("examples_per_second", "gradient_norm", "gradient_norm_max", "skipped_steps")


class Picture(Figure):
    """A figure that a notebook shows, whether or not pyplot is in use."""

    def _repr_png_(self) -> bytes:
        return png(self)


def png(figure: Figure) -> bytes:
    """The figure as the content of a PNG file."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    return drawn.getvalue()


def curves(history: Mapping[str, list[float]]) -> Picture:
    """Loss, metrics and learning rate of each epoch, for training and validation."""
    names = dict.fromkeys(name.removeprefix("val_") for name in history if name not in _HIDDEN)
    shown = sorted(names, key=lambda name: (name != "loss", name == "learning_rate"))
    columns, rows = min(3, len(shown)) or 1, -(-len(shown) // 3) or 1
    picture = Picture(figsize=(4.2 * columns, 3.1 * rows), layout="constrained")
    if not shown:
        picture.text(0.5, 0.5, "no epoch is complete yet", ha="center")
    for number, name in enumerate(shown, 1):
        axes = picture.add_subplot(rows, columns, number)
        for part, key in (("train", name), ("validation", f"val_{name}")):
            values = np.array(history.get(key, ()), float)
            known = values[np.isfinite(values)]
            if not len(known):
                continue
            mark, label = "." if len(values) < 30 else "", f"{part} {known[-1]:.4g}"
            axes.plot(np.arange(1, len(values) + 1), values, marker=mark, label=label)
            if "loss" in name and known.min() > 0 and known.max() > 50 * known.min():
                axes.set_yscale("log")
        if name != "learning_rate":
            axes.legend(fontsize=8)
        axes.set_title(name, fontsize=10, parse_math=False)
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("epoch" if number > len(shown) - columns else "")
    return picture


def mistakes(found: "Evaluation") -> Picture:
    """The worst answers with their examples and the names of their files."""
    order, title = found.worst
    some = order[:SHOWN]
    if not len(some):
        picture = Picture(figsize=(6, 1))
        picture.text(0.5, 0.5, title, ha="center", va="center")
        return picture
    examples = found.examples.take(some)
    columns, rows = min(_COLUMNS, len(some)), -(-len(some) // _COLUMNS)
    width, height = max(2.05 * columns, 5.5), 2.45 * rows + 0.5
    picture = Picture(figsize=(width, height))
    picture.suptitle(title, fontsize=10, y=1 - 0.12 / height, va="top")
    for at, position in enumerate(some):
        axes = picture.add_subplot(rows, columns, at + 1)
        answer = {name: column[position] for name, column in found.answers.items()}
        found.task.show(axes, {name: column[at] for name, column in examples.items()}, answer)
        font: dict[str, Any] = {"color": "dimgray", "fontsize": 7, "parse_math": False}
        file = shortened(found.names[position], 32)
        below = -0.16 if axes.axison else -0.03
        axes.text(0.5, below, file, ha="center", va="top", transform=axes.transAxes, **font)
    # Inches at the left and below, and spaces between; numbers beside axes need some.
    left, below, space = (0.8, 0.55, 0.7) if axes.axison else (0.1, 0.25, 0.08)
    top = 1 - 0.75 / height
    picture.subplots_adjust(left / width, below / height, 1 - 0.1 / width, top, space, 0.42)
    return picture


def write(found: "Evaluation", folder: Path, history: Mapping[str, list[float]] | None) -> None:
    """Writes all pictures into a directory, curves only if there is a history.

    Prints a note if one cannot be drawn.
    """
    kinds: Any = {
        CURVES: lambda: {CURVES: curves(history or {})} if history is not None else {},
        "plots": lambda: found.task.pictures(found.metrics),
        MISTAKES: lambda: {MISTAKES: mistakes(found)},
    }
    with fonts("".join([*(found.task.metadata.get("class_names") or ()), *found.names])):
        for kind, draw in kinds.items():
            try:
                for name, figure in draw().items():
                    files.write_bytes(folder / name, png(figure))
            except Exception as error:  # such as a full disk, which must not end the run
                say("note", f"{kind} could not be drawn: {reason(error)}")


@contextlib.contextmanager
def fonts(text: str) -> Iterator[None]:
    """Uses matplotlib's own font, and installed ones for characters that it lacks."""
    families, missing = [_FONT], {ord(c) for c in text if c.isprintable()}
    for entry in sorted(font_manager.fontManager.ttflist, key=lambda one: one.name != _FONT):
        with contextlib.suppress(RuntimeError, OSError):  # such as fonts of bitmaps
            some = missing and missing & FT2Font(entry.fname).get_charmap().keys()
            if some and not entry.name.startswith("Last Resort"):  # has only boxes
                families, missing = [*families, entry.name], missing - some
    if missing:
        shown = "".join(map(chr, sorted(missing)))[:20]
        say("note", f"no installed font has {shown}: pictures show boxes instead")
    drawn = matplotlib.rc_context({"font.family": [*dict.fromkeys(families)]})
    with drawn, warnings.catch_warnings(action="ignore", category=UserWarning):  # of these boxes
        yield
