"""Examples as cards: what the input draws, with the title of the target."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from pipeline.contracts import Task
from pipeline.report import blocks, input_report, target_report
from pipeline.report.blocks import Card
from pipeline.report.evaluation import Evaluation
from pipeline.utils.columns import Columns

_INCHES = 1.7  # the longer side of an image
_PLOT = (2.8, 2.2)  # inches, of what is no image
_CELLS = 4  # numbers of a prediction
_OPACITY = 0.7  # of heat
_DPI = 100
_QUALITY = 85  # of JPEG
# Characters of HTML by the input in a group of cards, such as recordings: a report has
# up to five groups, and is smaller than 5 MB.
_MAX_HTML = 800_000


def answered(
    evaluation: Evaluation,
    positions: np.ndarray,
    heat: np.ndarray | None = None,
) -> list[Card]:
    """Cards of examples of an evaluation with their predictions.

    `heat`, (positions, height, width), is laid over what is drawn.
    """
    examples, predictions = evaluation.predict_rows(positions)
    raw = evaluation.raw(positions)
    rows = evaluation.rows(positions)
    of_input = input_report.report_of(evaluation.task.input)
    of_target = target_report.report_of(evaluation.task.target)
    cards: list[_Sketch] = []
    for row, id in enumerate(examples["id"].tolist()):
        example: dict[str, Any] = _row(examples, row)
        example["raw"] = _row(raw, row)
        prediction = _row(predictions, row)

        def draw(
            axes: Any, example: Any = example, prediction: Any = prediction
        ) -> None:
            of_input.draw(axes, example)
            of_target.draw(axes, example, prediction)

        sketch = _Sketch(draw, evaluation.locate(id))
        sketch.title = sketch.title or _cells(rows, row)
        sketch.heat = None if heat is None else heat[row]
        sketch.html = of_input.html(example) if heat is None else ""
        cards.append(sketch)
    return _finished(cards)


def plain(
    task: Task, examples: Mapping[str, np.ndarray], names: Sequence[str]
) -> list[Card]:
    """Cards of decoded examples without predictions; titles say what is right."""
    of_input = input_report.report_of(task.input)
    of_target = target_report.report_of(task.target)
    cards = []
    for row, name in enumerate(names):
        example = _row(examples, row)

        def draw(axes: Any, example: Any = example) -> None:
            of_input.draw(axes, example)

        sketch = _Sketch(draw, name)
        sketch.title = of_target.truth(example)
        sketch.color = ""
        sketch.html = of_input.html(example)
        cards.append(sketch)
    return _finished(cards)


def _cells(rows: Columns, row: int) -> str:
    """The first numbers of a prediction, for a target that draws no title."""
    cells = zip(list(rows)[1:], rows.rows()[row][1:], strict=True)
    return "\n".join(f"{name} {text}" for name, text in list(cells)[:_CELLS])


def _row(columns: Mapping[str, np.ndarray], row: int) -> dict[str, Any]:
    return {name: column[row] for name, column in columns.items()}


class _Sketch:
    """An example as `draw` draws it, with the title as text; rendered only if the
    input has no HTML, as that takes longest.
    """

    def __init__(self, draw: Callable[[Any], None], name: str) -> None:
        self.name = name
        self.heat: np.ndarray | None = None
        self.html = ""
        self._figure = Figure(figsize=_PLOT, dpi=_DPI, layout="constrained")
        self._axes = self._figure.add_subplot()
        draw(self._axes)
        self.title = self._axes.get_title()
        self.color = _color(self._axes.title.get_color())
        self._axes.set_title("")

    @property
    def is_wide(self) -> bool:
        return not self._axes.get_images()

    def render(self) -> Markup:
        """What is drawn, as HTML: an image without margins, or a figure."""
        if self.is_wide:
            return blocks.embed(self._figure)[0]
        figure, axes = self._figure, self._axes
        figure.set_layout_engine("none")
        left, right, bottom, top = axes.get_images()[0].get_extent()
        width, height = abs(right - left), abs(top - bottom)
        if self.heat is not None:
            axes.imshow(
                self.heat,
                extent=(left, right, bottom, top),
                alpha=_OPACITY * self.heat,
                cmap="autumn",
                interpolation="bilinear",
            )
        scale = _INCHES / max(width, height)
        figure.set_size_inches(width * scale, height * scale)
        axes.set_position((0, 0, 1, 1))
        axes.axis("off")
        file = io.BytesIO()
        picture = Image.fromarray(blocks.pixels(figure))
        picture.save(file, "jpeg", quality=_QUALITY)
        return blocks.image("jpeg", file.getvalue())


def _finished(sketches: Iterable[_Sketch]) -> list[Card]:
    """The cards, with the HTML of the input, if it has any and as long as there is room
    for it.
    """
    room = _MAX_HTML
    cards = []
    for sketch in sketches:
        room -= len(sketch.html)
        has_html = sketch.html and room >= 0
        picture = Markup(sketch.html) if has_html else sketch.render()
        is_wide = sketch.is_wide
        cards.append(Card(picture, sketch.title, sketch.color, sketch.name, is_wide))
    return cards


def _color(color: Any) -> str:
    """Targets draw titles of right predictions in green, of wrong ones in red."""
    names = {to_rgb("green"): "good", to_rgb("red"): "bad"}
    return names.get(to_rgb(color), "")
