"""Lines and tables on the console."""

import io
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from pipeline.utils import files, output
from pipeline.utils.errors import plain

_WARNINGS = ("warning", "skipped", "damaged", "stopped", "left out", "FAILED")
"""Keys of the lines that are printed even if the call is silent."""


def for_caller(text: str, in_python: str | None = None) -> str:
    """A text with options as on the command line; in a call of `fit`, with arguments,
    or the text `in_python`.
    """
    rewrite = output.current().in_python
    if rewrite is None:
        return text
    return rewrite(text) if in_python is None else in_python


def say(name: str, text: object) -> None:
    """Prints a line: a key and a text, whose line breaks are escaped."""
    if output.mode() == "json":
        output.write_json(name, str(text), {})
        return
    if output.mode() == "silent" and name not in _WARNINGS:
        return
    print(_line(name, text), flush=True)


def say_result(name: str, text: object) -> None:
    """Prints a line of the final result, as `say`, but also if the command is quiet."""
    if output.mode() in ("json", "silent"):
        say(name, text)
        return
    output.write_line(_line(name, text))


def say_lines(event: str, text: str, **fields: Any) -> None:
    """Prints lines as they are; `event` and `fields` are for JSON only."""
    if output.mode() == "json":
        output.write_json(event, text, files.strict(fields))
        return
    if output.mode() == "silent":
        return
    print(plain(text), flush=True)


def _line(name: str, text: object) -> str:
    line = plain(str(text)).replace("\n", "\\n")
    return f"{name:<10} {line}"


def numbers(metrics: Mapping[str, Any]) -> str:
    """The metrics that are one number."""
    floats = {
        name: value for name, value in metrics.items() if isinstance(value, float)
    }
    return "  ".join(f"{name} {value:.4f}" for name, value in floats.items())


def spread(metrics: Mapping[str, Mapping[str, float]], folds: int) -> str:
    """The mean and the standard deviation of each metric over several folds.

    None, as NaN is written in JSON, is shown as `nan`.
    """
    parts = []
    for name, metric in metrics.items():
        mean, std = (
            "nan" if metric[key] is None else f"{metric[key]:.4f}"
            for key in ("mean", "std")
        )
        parts.append(f"{name} {mean} +- {std}")
    return f"{'  '.join(parts)}  (mean +- standard deviation of {folds:,} folds)"


def pluralize(number: int, noun: str) -> str:
    """`1 class`, `2,000 classes`, `2 boxes`."""
    if number != 1:
        noun += "es" if noun.endswith(("s", "x")) else "s"
    return f"{number:,} {noun}"


def join_words(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def clock(seconds: float) -> str:
    """`1:05`, `2:00:00`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def table(
    rows: Iterable[Sequence[object]],
    headers: Sequence[str] = (),
    right: Container[int] = (),
) -> str:
    """Aligns rows as plain text: one line for each, neither wrapped nor truncated.

    Columns line up in a terminal even if a cell contains wide or combining characters.
    Without headers there is no header line. `right` has the positions of the columns to
    align to the right.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = [list(row) for row in rows]
    grid = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(headers)
    )
    for column in range(max(map(len, [headers, *lines]))):
        name = Text(plain(headers[column]) if headers else "")
        side: Any = "right" if column in right else "left"
        grid.add_column(name, justify=side, no_wrap=True)
    for row in lines:
        # `Text`: a file name such as a[b].png is not markup.
        grid.add_row(*(Text(plain(str(cell)).replace("\n", " ")) for cell in row))
    output = io.StringIO()
    console = Console(
        file=output,
        width=10**6,  # rich must not wrap
        color_system=None,
        force_terminal=False,
        force_jupyter=False,  # otherwise, rich shows the table and returns nothing
    )
    console.print(grid)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())
