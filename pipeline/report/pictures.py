"""Figures of a run: its curves, its worst answers, and the plots of its task."""

import contextlib
import dataclasses
import functools
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import MaxNLocator

from pipeline.evaluation.evaluate import Evaluated
from pipeline.utils import files
from pipeline.utils.console import say, shortened
from pipeline.utils.errors import reason

CURVES, MISTAKES = "curves.png", "mistakes.png"
SHOWN = 24
"""Examples in a figure of mistakes."""
_COLUMNS = 6
_DPI = 150
_HIDDEN = ("examples_per_second", "gradient_norm", "gradient_norm_max", "skipped_steps")
_FONT = "DejaVu Sans"  # comes with matplotlib


class Picture(Figure):
    """A figure that a notebook shows, whether or not pyplot is in use."""

    def _repr_png_(self) -> bytes:
        return png(self)


def png(figure: Figure) -> bytes:
    """The figure as the content of a PNG file."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    return drawn.getvalue()


def curves(history: Mapping[str, list[float]]) -> Picture:
    """Loss, metrics and learning rate of each epoch, for training and validation."""
    names = dict.fromkeys(name.removeprefix("val_") for name in history if name not in _HIDDEN)
    shown = sorted(names, key=lambda name: (name != "loss", name == "learning_rate"))
    columns = min(3, max(1, len(shown)))
    rows = max(1, -(-len(shown) // columns))
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
            mark = "." if len(values) < 30 else ""
            label = f"{part} {known[-1]:.4g}"
            axes.plot(np.arange(1, len(values) + 1), values, marker=mark, label=label)
            if "loss" in name and known.min() > 0 and known.max() > 50 * known.min():
                axes.set_yscale("log")
        if name != "learning_rate":
            axes.legend(fontsize=8)
        axes.set_title(name, fontsize=10, parse_math=False)
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if number > len(shown) - columns:
            axes.set_xlabel("epoch")
    return picture


def mistakes(found: Evaluated, count: int = SHOWN) -> Picture:
    """The worst answers with their examples and the names of their files."""
    order = found.task.mistakes(found.answers)
    some = order[:count]
    title = f"{found.split}: {summary(found, order)}"
    if not len(some):
        picture = Picture(figsize=(6, 1))
        picture.text(0.5, 0.5, title, ha="center", va="center")
        return picture
    examples = found.examples.take(some)
    columns = min(_COLUMNS, len(some))
    rows = -(-len(some) // columns)
    width, height = max(2.05 * columns, 5.5), 2.45 * rows + 0.5
    picture = Picture(figsize=(width, height))
    picture.suptitle(title, fontsize=10, y=1 - 0.12 / height, va="top")
    for at, position in enumerate(some):
        axes = picture.add_subplot(rows, columns, at + 1)
        answer = {name: column[position] for name, column in found.answers.items()}
        found.task.show(axes, {name: column[at] for name, column in examples.items()}, answer)
        file = shortened(found.location(position), 32)
        gray: dict[str, Any] = {"color": "dimgray", "fontsize": 7, "parse_math": False}
        axes.text(0.5, -0.03 if not axes.axison else -0.16, file, **gray, ha="center", va="top",
                  transform=axes.transAxes)  # fmt: skip
    below, above, side = 0.25 / height, 1 - 0.75 / height, 0.1 / width
    spread = {"left": side if not axes.axison else 0.8 / width, "right": 1 - side}
    picture.subplots_adjust(bottom=below, top=above, wspace=0.08 if not axes.axison else 0.7,
                            hspace=0.42, **spread)  # fmt: skip
    return picture


def summary(found: Evaluated, order: np.ndarray) -> str:
    """A sentence about the mistakes; `order` is from `Task.mistakes`."""
    total = len(found.answers["id"])
    if "correct" not in found.task.predictions(found.answers):
        return f"the {min(len(order), SHOWN)} worst of {total:,} answers"
    if not len(order):
        return f"all {total:,} answers are right"
    return f"{len(order):,} of {total:,} answers are wrong, the most confident first"


def write(found: Evaluated, folder: Path, history: Mapping[str, list[float]] | None = None) -> None:
    """Writes all pictures into a directory; prints a note if one cannot be drawn.

    Args:
        found: The answers and their metrics.
        folder: An existing directory.
        history: Metric -> value per epoch; None: no curves.
    """
    with fonts(found) as shown:
        kinds: dict[str, Callable[[], Mapping[str, Figure]]] = {
            "plots": lambda: shown.task.pictures(found.metrics),
            MISTAKES: lambda: {MISTAKES: mistakes(shown)},
        }
        if history is not None:
            kinds[CURVES] = lambda: {CURVES: curves(history)}
        for kind, draw in kinds.items():
            try:
                for name, figure in draw().items():
                    files.write_bytes(folder / name, png(figure))
            except Exception as error:  # such as a full disk, which must not end the run
                say("note", f"{kind} could not be drawn: {reason(error)}")


@contextlib.contextmanager
def fonts(found: Evaluated) -> Iterator[Evaluated]:
    """Adds installed fonts for the characters of names that matplotlib's own font lacks.

    Yields the same with numbers in place of those class names that no font can draw.
    """
    names = found.task.metadata.get("class_names") or []
    places = [found.location(position) for position in range(len(found.columns["id"]))]
    families, none = _families(_lacking("".join([*names, *places])))
    if none & {*"".join(names)}:
        missing = "".join(sorted(none))[:20]
        say("note", f"no installed font has {missing}; pictures number the classes concerned")
        plain = [f"class {n}" if none & {*name} else name for n, name in enumerate(names)]
        task = type(found.task)({**found.task.metadata, "class_names": plain})
        found = dataclasses.replace(found, task=task)
    with matplotlib.rc_context({"font.family": families}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # of file names
        yield found


def _lacking(text: str) -> frozenset[str]:
    """The characters that matplotlib's own font does not have."""
    own = FT2Font(font_manager.findfont(_FONT)).get_charmap()
    return frozenset(char for char in set(text) if ord(char) not in own and char.isprintable())


@functools.cache
def _families(missing: frozenset[str]) -> tuple[list[str], frozenset[str]]:
    """Fonts that have some of the characters, after matplotlib's; the characters that none has."""
    found = [_FONT]
    for entry in font_manager.fontManager.ttflist if missing else ():
        if entry.name.startswith("Last Resort"):  # boxes for all characters
            continue
        with contextlib.suppress(RuntimeError, OSError):  # such as fonts of bitmaps
            known = FT2Font(entry.fname).get_charmap()
            if some := {char for char in missing if ord(char) in known}:
                found.append(entry.name)
                missing -= some
    return found, missing
