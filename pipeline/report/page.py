"""`report.html`: one file that explains a run and loads nothing else."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pipeline.report import data_sections, prediction_sections, run_sections
from pipeline.report.blocks import Block, Text
from pipeline.report.subject import Subject
from pipeline.report.target_report import report_of
from pipeline.utils import files
from pipeline.utils.errors import reason

NAME = "report.html"
_MISTAKES = "Most confident mistakes"
_ERRORS = "Largest errors"  # of predictions that are neither right nor wrong
_Sections = dict[str, Callable[[Subject], Iterable[Block]]]
_SECTIONS: _Sections = {
    "Performance": prediction_sections.predictions,
    _MISTAKES: prediction_sections.mistakes,
    "Least certain predictions": prediction_sections.least_certain,
    "What the network looks at": prediction_sections.explanations,
    "Columns": prediction_sections.columns,
    "How to reproduce": run_sections.repeat_evaluation,
}
_RUN_SECTIONS: _Sections = {
    "Setup": run_sections.setup,
    "Training": run_sections.training,
    "Data": data_sections.data,
    "Automatic choices": run_sections.decisions,
    "How to reproduce this run": run_sections.repeat,
    "Options": run_sections.options,
}


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page."""

    heading: str
    blocks: list[Block]
    part: str = ""
    """The heading above this section and those that follow."""


class Line(NamedTuple):
    """A sentence at the top of a page."""

    text: str
    color: str = ""


def write(subject: Subject, folder: Path) -> Path:
    """Writes `report.html` into a directory; returns its path."""
    path = folder / NAME
    files.write_text(path, render(subject))
    return path


def render(subject: Subject) -> str:
    """The page; a section that fails says why, and the others are shown.

    All texts are escaped: names of files and classes may contain HTML.
    """
    sections = _sections(_SECTIONS, subject)
    of_run = _sections(_RUN_SECTIONS, subject)
    if subject.measured and of_run:
        of_run[0] = dataclasses.replace(of_run[0], part="The original run")
    return html(_title(subject), list(_lead(subject)), [*sections, *of_run])


def html(title: str, lead: list[Line], sections: list[Section]) -> str:
    """A page of sections that loads nothing else; all texts are escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipeline.report"),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    template = environment.get_template("report.html.j2")
    text = template.render(title=title, lead=lead, sections=sections)
    return text.encode(errors="replace").decode()  # a file name need not be Unicode


def _sections(functions: _Sections, subject: Subject) -> list[Section]:
    """The sections that are not empty."""
    sections = []
    for heading, section in functions.items():
        if heading == _MISTAKES and "correct" not in subject.evaluation.table:
            heading = _ERRORS
        blocks = list(_guarded(section, subject))
        if blocks:
            sections.append(Section(heading, blocks))
    return sections


def _guarded(
    section: Callable[[Subject], Iterable[Block]], subject: Subject
) -> Iterator[Block]:
    """The blocks of a section, up to the first that fails."""
    try:
        yield from section(subject)
    except Exception as error:  # such as a task of the user's own
        yield Text(f"This part could not be made: {reason(error)}")


def _title(subject: Subject) -> str:
    task = subject.evaluation.task.title
    if measured := subject.measured:
        data = measured.data or f"its {subject.evaluation.place}"
        return f"Evaluation of {measured.model} on {data}"
    return f"{subject.run.config.name}: {task}" if subject.run else task


def _lead(subject: Subject) -> Iterator[Line]:
    """The first sentences: how good the model is, and whether it was exported."""
    evaluation = subject.evaluation
    try:
        if warning := evaluation.warning:
            yield Line(f"{warning[0].upper()}{warning[1:]}.", "bad")
        headline = report_of(evaluation.task.target).headline(evaluation.metrics)
        if headline and not run_sections.is_tested_by_folds(subject):
            yield Line(f"{_prefix(subject)}{headline}.")
        for note in evaluation.notes:
            yield Line(f"{note[0].upper()}{note[1:]}.", "warn")
    except Exception as error:  # as in `_guarded`
        yield Line(f"The headline could not be made: {reason(error)}", "bad")
    if prediction_sections.not_calibrated(subject):
        yield Line(
            "The probabilities are not calibrated: no temperature lowers the validation"
            " loss beyond its noise.",
            "warn",
        )
    for text, color in run_sections.lead(subject):
        yield Line(text, color)


def _prefix(subject: Subject) -> str:
    """What begins the headline, such as "Test "."""
    split = subject.evaluation.split
    path = subject.measured.data if subject.measured else ""
    if split == "data" or path:
        return f"On {subject.place}: "
    return f"{split.capitalize()} "
