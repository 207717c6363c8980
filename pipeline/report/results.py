"""Shows the results of a run: a summary, pictures and a table of predictions."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.report.evaluation import Evaluation
from pipeline.utils import files
from pipeline.utils.console import say, say_lines, say_result
from pipeline.utils.errors import reason
from pipeline.utils.image_sheets import png

if TYPE_CHECKING:
    from pipeline.report.subject import Subject

# These begin the lines of a summary.
_KEYS = ("note ", "answered ", "mistakes ", "importance ")


def show(
    evaluation: Evaluation,
    folder: Path,
    history: Mapping[str, list[float]] | None = None,
) -> list[str]:
    """Prints a summary, and writes `predictions.csv` and pictures into a directory.

    Returns the names of the files. Never fails, because the model is still to be
    exported: notes name the files that cannot be written. Without a history, there are
    no curves, and the metrics are printed, too.
    """
    written = []
    with _note_failure("predictions.csv"):
        if history is None:
            for name, numbers in evaluation.numbers.items():
                say_result(name, numbers)
        _say_summary(evaluation.text)
        files.write_parts(folder / "predictions.csv", evaluation.csv())
        written.append("predictions.csv")
        for name, table in evaluation.tables().items():
            files.write_bytes(folder / name, table.csv())
            written.append(name)
    with _note_failure("pictures"):
        from pipeline.report import pictures  # fails if matplotlib is badly configured

        for name, picture in evaluation.pictures.items():
            files.write_bytes(folder / f"{name}.png", png(picture))
            written.append(f"{name}.png")
        for name, draw in pictures.drawings(evaluation, history):
            with _note_failure(name):
                files.write_bytes(folder / name, pictures.png(draw()))
                written.append(name)
    return written


def _say_summary(text: str) -> None:
    """Prints the lines of a summary as they are; for JSON, each line with a key is an
    event, and so is the table. Notes are a part of the result.
    """

    def is_keyed(line: str) -> bool:
        return line.startswith(_KEYS)

    for has_keys, lines in itertools.groupby(text.splitlines(), is_keyed):
        if not has_keys:
            say_lines("table", "\n".join(lines))
            continue
        for line in lines:
            key, _, sentence = line.partition(" ")
            show = say_result if key == "note" else say
            show(key, sentence.strip())


def write_report(subject: "Subject", folder: Path) -> list[str]:
    """Writes `report.html` into a directory; never fails, as `show`.

    Returns the name of the file, if it was written.
    """
    with _note_failure("report.html"):
        from pipeline.report import page

        say_result("report", page.write(subject, folder))
        return [page.NAME]
    return []


@contextlib.contextmanager
def _note_failure(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # such as a task of the user's own, or a full disk
        say("note", f"{name} could not be written: {reason(error)}")
