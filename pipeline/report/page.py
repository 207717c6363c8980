"""`report.html`: one file that explains a run and loads nothing else."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pipeline.report import answer_sections, data_sections, run_sections
from pipeline.report.blocks import Block, Text
from pipeline.report.subject import Subject
from pipeline.utils import files
from pipeline.utils.errors import reason

NAME = "report.html"
_SECTIONS: dict[str, Callable[[Subject], Iterable[Block]]] = {
    "How good it is": answer_sections.answers,
    "Worst answers": answer_sections.mistakes,
    "Least certain answers": answer_sections.least_certain,
    "What the network looks at": answer_sections.explanations,
    "Robustness": answer_sections.robustness,
    "Training": run_sections.training,
    "Data": data_sections.data,
    "Automatic choices": run_sections.decisions,
    "How to repeat it": run_sections.repeat,
    "Options": run_sections.options,
}


@dataclasses.dataclass(frozen=True)
class _Section:
    heading: str
    blocks: list[Block]


class _Line(NamedTuple):
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
    import jinja2

    sections = []
    for heading, section in _SECTIONS.items():
        blocks = list(_guarded(section, subject))
        if blocks:
            sections.append(_Section(heading, blocks))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipeline.report"),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    template = environment.get_template("report.html.j2")
    text = template.render(
        title=_title(subject), lead=list(_lead(subject)), sections=sections
    )
    return text.encode(errors="replace").decode()  # a file name need not be Unicode


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
    return f"{subject.run.config.name}: {task}" if subject.run else task


def _lead(subject: Subject) -> Iterator[_Line]:
    """The first sentences: how good the model is, and whether it was exported."""
    evaluation = subject.evaluation
    try:
        if headline := evaluation.task.headline(evaluation.metrics):
            yield _Line(f"On the {evaluation.place}, {headline}.")
    except Exception as error:  # as in `_guarded`
        yield _Line(f"The headline could not be made: {reason(error)}", "bad")
    for text, color in run_sections.lead(subject):
        yield _Line(text, color)
