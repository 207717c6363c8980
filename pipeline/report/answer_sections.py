"""Sections about the answers: how good they are, mistakes, what they depend on."""

from collections.abc import Iterator

from pipeline.export import text_files
from pipeline.report import blocks, examples
from pipeline.report.blocks import Block, Cards, Heading, Table, Text
from pipeline.report.subject import Subject
from pipeline.utils.columns import Columns

_MISTAKES = 24  # examples
_UNCERTAIN = 12


def answers(subject: Subject) -> Iterator[Block]:
    """The metrics, and the panels of the task."""
    evaluation = subject.evaluation
    where = f"Measured on {len(evaluation):,} examples of the {evaluation.place}"
    if evaluation.split == "train":
        where += ", on which the model was trained"
    yield Text(f"{where}.")
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
    yield Text(f"{title[0].upper()}{title[1:]}; the worst come first.")
    if len(order):
        yield Cards(examples.answered(evaluation, order[:_MISTAKES]))


def least_certain(subject: Subject) -> Iterator[Block]:
    """The answers with the lowest probabilities."""
    order = subject.evaluation.least_certain[:_UNCERTAIN]
    if len(order):
        yield Text("Look at these for examples that are unusual or hard to tell apart.")
        yield Cards(examples.answered(subject.evaluation, order))
