"""Figures of a run: its curves, its worst predictions, and the plots of its task."""

import contextlib
import functools
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:  # curves need no TensorFlow
    from pipeline.report.evaluation import Evaluation

SHOWN = 24  # examples in a figure
_SHOWN_AS_TEXT = 12  # of inputs that are shown as text, which takes long to draw
_COLUMNS = 6  # examples in a row
# Installed fonts whose names begin so draw the characters that matplotlib's own font
# lacks.
_FONTS = ("Noto Sans", "Arial Unicode", "Hiragino Sans", "Microsoft YaHei", "WenQuanYi")
_HIDDEN = ("examples_per_second", "gradient_norm", "gradient_norm_max", "skipped_steps")


class NotebookFigure(Figure):
    """A figure that a notebook shows, whether or not pyplot is in use."""

    def _repr_png_(self) -> bytes:
        return png(self)


def png(figure: Figure, dpi: int = 150, is_cropped: bool = False) -> bytes:
    """Encodes a figure as PNG, perhaps without its margin; characters that no font has
    become boxes.
    """
    file = io.BytesIO()
    box = "tight" if is_cropped else None
    with all_fonts():
        figure.savefig(file, format="png", dpi=dpi, bbox_inches=box)
    return file.getvalue()


@contextlib.contextmanager
def all_fonts() -> Iterator[None]:
    """Draws characters of all fonts that are installed, without warnings."""
    installed = font_manager.get_font_names()
    fallbacks = sorted(name for name in installed if name.startswith(_FONTS))
    fonts = matplotlib.rc_context({"font.sans-serif": ["DejaVu Sans", *fallbacks]})
    with fonts, warnings.catch_warnings(action="ignore", category=UserWarning):
        yield


def drawings(
    evaluation: "Evaluation", history: Mapping[str, list[float]] | None
) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Yields file names and functions that draw a figure.

    Draws curves if there is a history, mistakes, and the plots of the task.
    """
    if history is not None:
        yield "curves.png", lambda: curves(history)
    yield "mistakes.png", lambda: mistakes(evaluation)
    from pipeline.report.target_report import report_of

    of_target = report_of(evaluation.task.target)
    figures = of_target.pictures(evaluation.metrics, evaluation.table)
    yield from (
        (name, functools.partial(figures.__getitem__, name)) for name in figures
    )


def curves(history: Mapping[str, list[float]]) -> NotebookFigure:
    """Draws loss, metrics and learning rate of each epoch."""
    visible = [name for name in history if name not in _HIDDEN]
    names = list(dict.fromkeys(name.removeprefix("val_") for name in visible))
    names.sort(key=lambda name: (name != "loss", name == "learning_rate"))
    rows = -(-len(names) // 3) or 1
    picture = NotebookFigure(figsize=(12.6, 3.1 * rows), layout="constrained")
    for number, name in enumerate(names, 1):
        axes = picture.add_subplot(rows, 3, number)
        for part, key in (("train", name), ("validation", f"val_{name}")):
            if values := history.get(key):
                epochs = np.arange(1, len(values) + 1)
                axes.plot(epochs, values, marker=".", label=f"{part} {values[-1]:.4g}")
        axes.legend(fontsize=8)
        axes.set_title(name, fontsize=10, parse_math=False)
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    picture.supxlabel("epoch" if names else "no epoch is complete yet", fontsize=9)
    return picture


def mistakes(evaluation: "Evaluation") -> NotebookFigure:
    """Draws the worst predictions with their examples and the names of their files."""
    from pipeline.report import input_report, target_report

    of_input = input_report.report_of(evaluation.task.input)
    of_target = target_report.report_of(evaluation.task.target)
    order, title = evaluation.worst
    shown = _examples(evaluation, order[:SHOWN]) if len(order) else []
    if shown and of_input.html(shown[0][0]):
        shown = shown[:_SHOWN_AS_TEXT]
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // _COLUMNS)
    size = (max(2.05 * columns, 6), 2.6 * rows + 0.6)
    picture = NotebookFigure(figsize=size, layout="constrained")
    picture.suptitle(title, fontsize=10)
    for number, (example, prediction) in enumerate(shown):
        axes = picture.add_subplot(rows, columns, number + 1)
        of_input.draw(axes, example)
        of_target.draw(axes, example, prediction)
        name = evaluation.locate(int(example["id"]))
        file = name.encode(errors="replace").decode()
        if len(file) > 32:
            file = f"...{file[-29:]}"
        axes.set_xlabel(file, fontsize=7, color="dimgray", parse_math=False)
    return picture


def _examples(
    evaluation: "Evaluation", positions: np.ndarray
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The examples at these positions with their predictions."""
    examples, predictions = evaluation.predict_rows(positions)
    raw = evaluation.raw(positions)
    pairs = []
    for row in range(len(positions)):
        example: dict[str, Any] = {key: values[row] for key, values in examples.items()}
        example["raw"] = {key: values[row] for key, values in raw.items()}
        prediction = {key: values[row] for key, values in predictions.items()}
        pairs.append((example, prediction))
    return pairs
