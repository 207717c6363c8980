"""Shows how a model answered a split: tables on the console, pictures and a table as files."""

from collections.abc import Mapping
from pathlib import Path

from pipeline.evaluation.evaluate import Evaluated
from pipeline.report.tables import Columns, cell
from pipeline.utils import console, files
from pipeline.utils.console import say
from pipeline.utils.errors import reason

PREDICTIONS = "predictions.csv"
_ROWS = 15  # of a table on the console


def show(
    found: Evaluated, folder: Path, history: Mapping[str, list[float]] | None, quiet: bool = False
) -> None:
    """Prints tables unless `quiet`; writes pictures and `predictions.csv` into a directory.

    Never fails, because the model is still to be exported: a note says what cannot be shown.
    `history` maps metrics to their values per epoch; without it, there are no curves.
    """
    try:
        columns = predictions(found)
        if not quiet:
            say_answers(found, columns)
        files.write_bytes(folder / PREDICTIONS, columns.csv())
    except Exception as error:  # such as a task of the user's own that does not expect this
        say("note", f"{PREDICTIONS} could not be written: {reason(error)}")
    try:
        from pipeline.report import pictures  # fails if matplotlib is badly configured

        pictures.write(found, folder, history)
    except Exception as error:
        say("note", f"pictures could not be drawn: {reason(error)}")


def predictions(found: Evaluated) -> Columns:
    """A row for each example: the name of its file, truth and answer."""
    return Columns(file=found.locations, **found.task.predictions(found.answers))


def say_answers(found: Evaluated, columns: Columns) -> None:
    """Prints the task's table of the metrics, the worst rows first, and the worst answer."""
    headers, rows = found.task.table(found.metrics)
    lines = console.table(rows[:_ROWS], headers, right=range(1, len(headers) - 1)) if rows else ""
    more = len(rows) - _ROWS
    for line in [*lines.splitlines(), *[f"... and {more:,} more, which are better"] * (more > 0)]:
        say("", line)
    order, total = found.task.mistakes(found.answers), f"{len(found.locations):,} answers"
    if not len(order):
        say("mistakes", f"none: all {total} of {found.split} are right")
        return
    file, *shown = [(name, cell(values[order[0]])) for name, values in columns.items()][:4]
    worst = f"{file[1]} ({', '.join(map(' '.join, shown))})"
    all_wrong = len(order) == len(found.locations)
    count = (
        f"the worst of {total}" if all_wrong else f"{len(order):,} of {total}, the most confident"
    )
    say("mistakes", f"{count}: {worst}")
