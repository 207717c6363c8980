"""Sections about the answers: how good they are, mistakes, what they depend on."""

import math
from collections.abc import Iterator
from typing import Any

from pipeline.evaluation import grad_cam
from pipeline.evaluation.robustness import measure as measure_robustness
from pipeline.export import text_files
from pipeline.report import blocks, examples
from pipeline.report.blocks import Block, Cards, Heading, Table, Text
from pipeline.report.subject import Subject
from pipeline.utils.columns import Columns

_MISTAKES = 24  # examples
_UNCERTAIN = 12
_EXPLAINED = 12


def answers(subject: Subject) -> Iterator[Block]:
    """The metrics, and the panels of the task."""
    evaluation = subject.evaluation
    yield Text(f"Measured on {len(evaluation):,} examples of the {evaluation.place}.")
    numbers = text_files.numbers(evaluation.metrics)
    numbers.pop("examples", None)
    names = [name.replace("_", " ").replace(".", ": ") for name in numbers]
    yield Table(Columns(metric=names, value=list(numbers.values())))
    for panel in evaluation.task.panels(evaluation.metrics, evaluation.table):
        yield Heading(panel.title)
        if panel.text:
            yield Text(panel.text)
        if isinstance(panel.content, Columns):
            yield Table(panel.content)
        else:
            yield blocks.drawing(panel.content)


def mistakes(subject: Subject) -> Iterator[Block]:
    """The worst predictions."""
    evaluation = subject.evaluation
    order, title = evaluation.worst
    yield Text(f"{title[0].upper()}{title[1:]}.")
    if len(order):
        yield Cards(examples.answered(evaluation, order[:_MISTAKES]))


def least_certain(subject: Subject) -> Iterator[Block]:
    """The answers with the lowest probabilities."""
    order = subject.evaluation.least_certain[:_UNCERTAIN]
    if len(order):
        yield Text("Look at these for examples that are unusual or hard to tell apart.")
        yield Cards(examples.answered(subject.evaluation, order))


def explanations(subject: Subject) -> Iterator[Block]:
    """Grad-CAM of mistakes, or else of the least certain answers."""
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
        "Colored parts of the worst answers speak for what was answered (Grad-CAM, on"
        " the last feature map). If they are not on the object, the network may have"
        " learned the background."
    )
    yield Cards(examples.answered(evaluation, positions, heat))


def robustness(subject: Subject) -> Iterator[Block]:
    """The metric on disturbed examples."""
    run = subject.run
    evaluation = subject.evaluation
    if run is None or run.config.report.robustness == "off":
        return
    if evaluation.network is None or not evaluation.task.corruptions():
        return
    seconds = math.inf
    if run.config.report.robustness == "auto":
        seconds = run.result.get("stages", {}).get("training", 0.0) / 10
    measured = measure_robustness(evaluation, run.config.train, seconds)
    if measured is None:
        yield Text(
            "Not measured, because it takes longer than a tenth of the training;"
            " --report.robustness on measures it."
        )
        return
    name = measured.metric.replace("_", " ")
    yield Text(
        f"The {name} of {measured.examples:,} examples of the"
        f" {evaluation.place} if they are disturbed: {measured.clean:.3f}"
        " without."
    )
    columns: dict[str, list[Any]] = {"disturbance": list(measured.corrupted)}
    for index, strength in enumerate(("weak", "medium", "strong")):
        columns[strength] = [values[index] for values in measured.corrupted.values()]
    yield Table(Columns(columns))
