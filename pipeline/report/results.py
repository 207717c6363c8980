"""The results of a run: a summary on the console, pictures and a table as files."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.evaluation.answers import Evaluation
from pipeline.utils import files
from pipeline.utils.console import say
from pipeline.utils.errors import plain, reason


def show(
    found: Evaluation, folder: Path, history: Mapping[str, list[float]] | None = None
) -> list[str]:
    """Prints the text; writes `predictions.csv` and pictures into a directory; returns
    their names.

    Never fails, because the model is still to be exported: a note says what cannot be
    written. Without a history, there are no curves, and the metrics are printed, too.
    """
    written = []
    with _noted("predictions.csv"):
        print(plain(repr(found) if history is None else found.text), flush=True)
        files.write_bytes(folder / "predictions.csv", found.predictions.csv())
        written.append("predictions.csv")
    with _noted("pictures"):
        from pipeline.report import pictures  # fails if matplotlib is badly configured

        for name, draw in pictures.drawings(found, history):
            with _noted(name):
                files.write_bytes(folder / name, pictures.png(draw()))
                written.append(name)
    return written


@contextlib.contextmanager
def _noted(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # such as a task of the user's own, or a full disk
        say("note", f"{what} could not be written: {reason(error)}")
