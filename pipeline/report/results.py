"""Shows how a model answered a split: tables on the console, pictures and a table as files."""

from collections.abc import Mapping
from pathlib import Path

from pipeline.evaluation.evaluate import Evaluated
from pipeline.report import tables
from pipeline.utils import files
from pipeline.utils.console import say
from pipeline.utils.errors import reason


def show(
    found: Evaluated,
    folder: Path,
    history: Mapping[str, list[float]] | None = None,
    quiet: bool = False,
) -> None:
    """Prints tables, and writes pictures and `predictions.csv` into a directory.

    Never fails: a note says what cannot be shown, because the model is still to be exported.

    Args:
        found: The answers and their metrics.
        folder: An existing directory.
        history: Metric -> value per epoch, for the curves; None: no curves.
        quiet: Print no tables.
    """
    try:
        columns = tables.predictions(found)
        if not quiet:
            tables.say_classes(found)
            tables.say_mistakes(found, columns)
        files.write_bytes(folder / tables.PREDICTIONS, tables.as_csv(columns))
    except Exception as error:  # such as a task of the user's own that does not expect this
        say("note", f"{tables.PREDICTIONS} could not be written: {reason(error)}")
    try:
        from pipeline.report import pictures  # a broken configuration of matplotlib fails here

        pictures.write(found, folder, history)
    except Exception as error:
        say("note", f"pictures could not be drawn: {reason(error)}")
