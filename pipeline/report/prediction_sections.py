"""Sections about the predictions: how good they are, mistakes, what they depend on."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pipeline.evaluation import grad_cam
from pipeline.export import text_files
from pipeline.report import blocks, examples
from pipeline.report.blocks import Block, Card, Cards, Grid, Heading, TableBlock, Text
from pipeline.report.evaluation import Evaluation
from pipeline.report.subject import Subject
from pipeline.report.target_report import Panel, report_of
from pipeline.utils.columns import Columns
from pipeline.utils.image_sheets import png

_MISTAKES = 24  # examples
_ERRORS = 8  # of numbers
_UNCERTAIN = 12
_EXPLAINED = 12


def predictions(subject: Subject) -> Iterator[Block]:
    """The metrics, and the panels of the task."""
    evaluation = subject.evaluation
    yield Text(f"Measured on {len(evaluation):,} examples: {subject.place}.")
    cells: list[list[Block]] = [[Heading("Metrics"), TableBlock(_metrics(subject))]]
    try:
        shown = report_of(evaluation.task.target)
        for panel in shown.panels(evaluation.metrics, evaluation.table):
            cells.append(_cell(panel))
    finally:
        yield Grid(cells)
    cards = []
    for name, picture in evaluation.pictures.items():
        title = name.replace("_", " ").capitalize()
        content = blocks.image("png", png(picture))
        cards.append(Card(content, title, is_wide=True))
    if cards:
        yield Cards(cards)


def _metrics(subject: Subject) -> Columns:
    evaluation = subject.evaluation
    numbers = text_files.numbers(evaluation.metrics)
    numbers.pop("examples", None)
    if not_calibrated(subject):
        for name in list(numbers):
            if name.startswith("calibrated."):
                del numbers[name]
    names = [name.replace("_", " ").replace(".", ": ") for name in numbers]
    return Columns(metric=names, value=list(numbers.values()))


def not_calibrated(subject: Subject) -> bool:
    """Whether no temperature lowers the validation loss beyond its noise."""
    run = subject.run
    return run is not None and run.result.get("calibration") == {"temperature": 1.0}


def _cell(panel: Panel) -> list[Block]:
    cell: list[Block] = [Heading(panel.title)]
    if panel.text:
        cell.append(Text(panel.text))
    for content in (panel.content, panel.table):
        if isinstance(content, Columns):
            cell.append(TableBlock(content))
        elif content is not None:
            cell.append(blocks.drawing(content))
    return cell


def mistakes(subject: Subject) -> Iterator[Block]:
    """The worst predictions."""
    evaluation = subject.evaluation
    order, title = evaluation.worst
    yield Text(f"{title[0].upper()}{title[1:]}.")
    if not len(order):
        return
    errors = _errors(evaluation, order[:_ERRORS])
    if errors is None:
        yield Cards(examples.answered(evaluation, order[:_MISTAKES]))
        return
    yield TableBlock(errors)
    pictures = examples.answered(evaluation, order[:_ERRORS])
    has_columns = bool(evaluation.task.input.learned_columns())
    if has_columns or not all(card.is_wide for card in pictures):
        yield Cards(pictures)


def _errors(evaluation: Evaluation, positions: np.ndarray) -> Columns | None:
    """Predicted and true numbers with their differences; None if these are none."""
    rows = evaluation.rows(positions)
    columns: dict[str, list[Any]] = {"example": rows["file"]}
    for name in rows:
        if not name.startswith("prediction"):
            continue
        ending = name.removeprefix("prediction")
        predicted, true = rows[name], rows.get(f"truth{ending}")
        if true is None or not all(isinstance(value, float) for value in predicted):
            return None
        label = ending.replace("_", " ")
        columns[f"predicted{label}"] = predicted
        columns[f"true{label}"] = true
        columns[f"error{label}"] = [a - b for a, b in zip(predicted, true, strict=True)]
    return Columns(columns) if len(columns) > 1 else None


def least_certain(subject: Subject) -> Iterator[Block]:
    """The predictions with the lowest probabilities that are not shown as mistakes."""
    evaluation = subject.evaluation
    shown, _ = evaluation.worst
    order = evaluation.least_certain
    order = order[~np.isin(order, shown[:_MISTAKES])][:_UNCERTAIN]
    if len(order):
        yield Text("Look at these for examples that are unusual or hard to tell apart.")
        yield Cards(examples.answered(evaluation, order))


def explanations(subject: Subject) -> Iterator[Block]:
    """Grad-CAM of mistakes, or else of the least certain predictions."""
    evaluation = subject.evaluation
    worst, _ = evaluation.worst
    order = worst if len(worst) else evaluation.least_certain
    positions = order[:_EXPLAINED]
    heat = grad_cam.heat_maps(
        evaluation.network, evaluation.task, evaluation.examples.take(positions)
    )
    if heat is None:
        return
    yield Text(
        "Highlighted regions contributed most to the prediction (Grad-CAM, on the last"
        " feature map). If they are not on the object, the network may have learned the"
        " background."
    )
    yield Cards(examples.answered(evaluation, positions, heat))


def columns(subject: Subject) -> Iterator[Block]:
    """The columns of a table: what was learned of them, and their importance."""
    evaluation = subject.evaluation
    learned = evaluation.task.input.learned_columns()
    if not learned:
        return
    importances = evaluation.importances
    values: dict[str, list[Any]] = {}
    if importances is not None:
        name = importances.metric.replace("_", " ")
        yield Text(
            f"The importance of a column is how much worse the {name}"
            f" ({blocks.number(importances.intact)}) becomes if its values are shuffled"
            f" between {importances.examples:,} examples of {subject.place}: mean and"
            f" standard deviation of {importances.repeats} shuffles. Columns that say"
            " the same share their importance."
        )
        order = [column.name for column in importances.columns]
        learned.sort(key=lambda column: order.index(column.name))
        values["importance"] = [column.mean for column in importances.columns]
        values["±"] = [column.deviation for column in importances.columns]
    yield TableBlock(
        Columns(
            column=[column.name for column in learned],
            kind=[column.kind for column in learned],
            **values,
            missing=[f"{column.missing:.1%}" for column in learned],
            learned=[column.learned for column in learned],
        )
    )
