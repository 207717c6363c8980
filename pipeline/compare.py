"""Compares runs on the same test examples."""

import dataclasses
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config import cli_parser, help_text
from pipeline.utils import files
from pipeline.utils.console import say, say_lines, say_result
from pipeline.utils.errors import UsageError, run_command

if TYPE_CHECKING:
    from pipeline.report.comparison import Comparison
    from pipeline.report.run import Run

PROGRAM = "pipeline compare"
_PURPOSE = """\
Compares runs: the options that differ, the metrics, with tests whether they differ by
more than chance, the curves, and the test examples that one run predicts right and
another wrong. Runs that differ only in their seed are one model, unless all do."""
_ARGUMENTS = {
    "RUN RUN ...": "The directories of finished runs, such as runs/digits-1.",
}


@dataclasses.dataclass(frozen=True)
class CompareOptions:
    """Where the results are written."""

    output: Path | None = None
    """Directory for report.html and the tables. None: the next free compared/NAME-N."""


def compare(*runs: "Run | str | Path") -> "Comparison":
    """Compares finished runs of the same task; a table in a notebook.

    Args:
        runs: At least two runs, or their directories. Runs that differ only in their
            seed are one model, unless all do.

    Raises:
        UsageError: There are fewer than two runs, one is unfinished or damaged, or
            their tasks differ.
    """
    from pipeline.runtime import environment

    environment.import_tensorflow()
    from pipeline.report import comparison

    return comparison.compare(runs)


def main(arguments: list[str]) -> int:
    """`pipeline compare RUN RUN ... [--output DIRECTORY]`."""
    if {"--help", "-h"} & set(arguments):
        print(help_text.page(PROGRAM, _PURPOSE, CompareOptions(), _ARGUMENTS))
        return 0
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    changes = cli_parser.changes(arguments[len(words) :], CompareOptions)
    options = CompareOptions(**changes)
    if len(words) < 2:
        raise UsageError(f"{PROGRAM} needs at least two runs, such as runs/digits-1")
    for word in words:
        if not (Path(word) / "config.json").is_file():
            raise UsageError(f"{word} is not a run, such as runs/digits-1")
    compared = compare(*words)
    from pipeline.report import comparison, page

    name = compared.models[0].runs[0].config.name
    folder = options.output or files.make_next(Path("compared"), name)
    folder.mkdir(parents=True, exist_ok=True)
    for line in repr(compared).splitlines():
        say_lines("table", line)
    lead = [page.Line(_sentence(text)) for text in compared.sentences]
    lead += [page.Line(_sentence(text), "warn") for text in compared.notes]
    title = " and ".join(model.name for model in compared.models)
    content = page.html(title, lead, list(comparison.sections(compared)))
    files.write_text(folder / page.NAME, content)
    files.write_bytes(folder / "metrics.csv", compared.metrics.csv())
    written = [page.NAME, "metrics.csv"]
    if compared.examples:
        files.write_bytes(folder / "examples.csv", compared.examples.csv())
        written.append("examples.csv")
    say_result("report", folder / page.NAME)
    say("written", f"{folder}/: {', '.join(written)}")
    return 0


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    run_command(main)
