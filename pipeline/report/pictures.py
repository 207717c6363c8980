"""Figures of a run: its curves, its worst predictions, and the plots of its task."""

import functools
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:  # curves need no TensorFlow
    from pipeline.evaluation.answers import Evaluation

SHOWN = 24  # examples in a figure
_COLUMNS = 6  # examples in a row
# Installed fonts whose names begin so draw the characters that matplotlib's own font
# lacks.
_FONTS = ("Noto Sans", "Arial Unicode", "Hiragino Sans", "Microsoft YaHei", "WenQuanYi")
_HIDDEN = ("examples_per_second", "gradient_norm", "gradient_norm_max", "skipped_steps")


class NotebookFigure(Figure):
    """A figure that a notebook shows, whether or not pyplot is in use."""

    def _repr_png_(self) -> bytes:
        return png(self)


def png(figure: Figure) -> bytes:
    """The figure as the content of a PNG file; characters that no font has
    are boxes.
    """
    drawn = io.BytesIO()
    installed = font_manager.get_font_names()
    fallbacks = sorted(name for name in installed if name.startswith(_FONTS))
    fonts = matplotlib.rc_context({"font.sans-serif": ["DejaVu Sans", *fallbacks]})
    with fonts, warnings.catch_warnings(action="ignore", category=UserWarning):
        figure.savefig(drawn, format="png", dpi=150)
    return drawn.getvalue()


def drawings(
    evaluation: "Evaluation", history: Mapping[str, list[float]] | None
) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """File names, and functions that draw: curves if there is a history, mistakes, the
    plots of the task.
    """
    if history is not None:
        yield "curves.png", lambda: curves(history)
    yield "mistakes.png", lambda: mistakes(evaluation)
    figures = evaluation.task.pictures(evaluation.metrics)
    yield from (
        (name, functools.partial(figures.__getitem__, name)) for name in figures
    )


def curves(history: Mapping[str, list[float]]) -> NotebookFigure:
    """Loss, metrics and learning rate of each epoch, for training and validation."""
    names = dict.fromkeys(
        name.removeprefix("val_") for name in history if name not in _HIDDEN
    )
    shown = sorted(names, key=lambda name: (name != "loss", name == "learning_rate"))
    rows = -(-len(shown) // 3) or 1
    picture = NotebookFigure(figsize=(12.6, 3.1 * rows), layout="constrained")
    for number, name in enumerate(shown, 1):
        axes = picture.add_subplot(rows, 3, number)
        for part, key in (("train", name), ("validation", f"val_{name}")):
            if values := history.get(key):
                epochs = np.arange(1, len(values) + 1)
                axes.plot(epochs, values, marker=".", label=f"{part} {values[-1]:.4g}")
        axes.legend(fontsize=8)
        axes.set_title(name, fontsize=10, parse_math=False)
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    picture.supxlabel("epoch" if shown else "no epoch is complete yet", fontsize=9)
    return picture


def mistakes(evaluation: "Evaluation") -> NotebookFigure:
    """The worst predictions with their examples and the names of their files."""
    order, title = evaluation.worst
    shown = order[:SHOWN]
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // _COLUMNS)
    picture = NotebookFigure(
        figsize=(max(2.05 * columns, 6), 2.6 * rows + 0.6), layout="constrained"
    )
    picture.suptitle(title, fontsize=10)
    examples = evaluation.examples.take(shown) if len(shown) else {}
    for at, position in enumerate(shown):
        axes = picture.add_subplot(rows, columns, at + 1)
        answer = {name: column[position] for name, column in evaluation.answers.items()}
        evaluation.task.show(
            axes, {name: column[at] for name, column in examples.items()}, answer
        )
        file = (
            evaluation.predictions["file"][position].encode(errors="replace").decode()
        )
        file = file if len(file) <= 32 else f"...{file[-29:]}"
        axes.set_xlabel(file, fontsize=7, color="dimgray", parse_math=False)
    return picture
