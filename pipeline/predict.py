"""Predicts files with an exported model, loaded from its directory or behind a
server.
"""

import contextlib
import csv
import dataclasses
import io
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

from pipeline.config import cli_parser, help_text
from pipeline.config.validation import require
from pipeline.report.run import Run
from pipeline.serving.client import EXPECTED, Client
from pipeline.serving.file_predictions import find, predict, takes_texts
from pipeline.utils import files
from pipeline.utils.errors import UsageError, plain, run_command

PROGRAM = "pipeline predict"
_MOST_LINES = 3  # about rows of a file that are skipped for the same reason
_PURPOSE = """\
Prints a model's answer for each image or row, in order. Files that are damaged or
cannot be read are reported and skipped, and the exit code is 1."""
_ARGUMENTS = {
    "MODEL": (
        "The directory of a version; the directory of a model, to use its served"
        " version (the pinned one or the newest); the directory of a run, to use its"
        " export; http://HOST:8501/v1/models/NAME[/versions/N]; or"
        " grpc://HOST:8500/NAME[/N]."
    ),
    "FILES": (
        "Files of images or recordings, directories of them, or patterns; - reads file"
        " names from stdin. For a model that takes numbers: .csv, .jsonl or .npy files."
        " For a model that takes texts: text files, tables, or - for lines of stdin."
    ),
}


@dataclasses.dataclass(frozen=True)
class PredictOptions:
    """Options of the requests, and of the written answers."""

    format: Literal["jsonl", "csv"] | None = None
    """One JSON object per line (jsonl), or a table (csv). None: csv if --output ends in
    .csv, else jsonl.
    """
    output: Path | None = None
    """Write the answers to this file, which appears once it is complete. If the server
    stops responding, FILE.part contains the answers received so far. None: answers are
    printed.
    """
    top: Annotated[int, (1, 10**6)] = 1
    """Number of most probable classes to list, each with its probability."""
    batch_size: Annotated[int, (1, 10**6)] = 32
    """Images or rows per request."""
    column: str | None = None
    """Column of the texts in a table. None: the one of training, or behind a server the
    one with a name of texts, such as `text`.
    """
    timeout: Annotated[float, "positive"] = 30.0
    """Timeout of a request, in seconds."""


def _write(
    records: Iterable[dict[str, Any]], stream: TextIO, as_table: bool
) -> tuple[int, int]:
    """Writes answers as lines and reports skipped files; returns the number of both."""
    written = 0
    skipped = 0
    repeated: dict[tuple[str, str], int] = {}
    table = csv.writer(stream, lineterminator="\n")
    for record in records:
        if "error" in record:
            skipped += 1
            key = (record["file"], record["error"])
            repeated[key] = repeated.get(key, 0) + 1
            if repeated[key] <= _MOST_LINES:
                row = f" row {record['row']}" if "row" in record else ""
                _say("skipped", f"{record['file']}{row}: {record['error']}")
            continue
        if stream.isatty():  # file names may contain control characters of a terminal
            record["file"] = plain(record["file"])
        if as_table:
            cells = _cells(record)
            if not written:
                table.writerow(cells)
            table.writerow(cells.values())
        else:
            stream.write(json.dumps(files.strict(record), ensure_ascii=False) + "\n")
        written += 1
    for (file, _), count in repeated.items():
        if count > _MOST_LINES:
            _say("skipped", f"{file}: {count - _MOST_LINES:,} more rows, likewise")
    return written, skipped


def _cells(record: Mapping[str, Any]) -> dict[str, Any]:
    cells = {}
    for name, value in record.items():
        if name != "top":
            cells[name] = json.dumps(value) if isinstance(value, list) else value
    for rank, answer in enumerate(record.get("top", ())[1:], 2):
        for name, value in answer.items():
            cells[f"{name}_{rank}"] = value
    return cells


def _say(name: str, text: str) -> None:
    print(f"{name:<10} {plain(text)}", file=sys.stderr, flush=True)


def _parse(arguments: list[str]) -> tuple[str, list[str], PredictOptions]:
    """Returns the model, the words that name files, and the options."""
    is_word = lambda word: word == "-" or not word.startswith("-")  # noqa: E731
    words = list(itertools.takewhile(is_word, arguments))
    changes = cli_parser.changes(arguments[len(words) :], PredictOptions)
    options = PredictOptions(**changes)
    if len(words) < 2:
        raise UsageError(
            f"{PROGRAM} MODEL FILES takes {EXPECTED}, and then files, directories,"
            f" patterns or - for a list; got {' '.join(arguments)[:200]!r}"
        )
    return words[0], words[1:], options


def _read_names() -> list[str]:
    """Reads names from stdin, as `find` or `find -print0` prints them."""
    text = sys.stdin.buffer.read()
    separator = b"\0" if b"\0" in text else b"\n"
    return [os.fsdecode(name) for name in text.split(separator) if name]


@contextlib.contextmanager
def _open(output: Path | None) -> Iterator[TextIO]:
    """Opens the output in UTF-8; names that are not valid Unicode are escaped as in
    JSON.
    """
    if output is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(
                encoding="utf-8", errors="backslashreplace", line_buffering=True
            )
        yield sys.stdout
        return
    path = output.resolve()  # a link stays a link
    part = path.with_name(f"{path.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Each line at once, so that it is kept if the process is killed.
        with part.open(
            "w", 1, "utf-8", errors="backslashreplace", newline=""
        ) as stream:
            yield stream
    except BaseException:
        _say("kept", f"the answers received so far are in {part}")
        raise
    part.replace(path)


def main(arguments: list[str]) -> int:
    """`pipeline predict MODEL FILES [--option VALUE ...]`.

    Returns 1 if a file was skipped.
    """
    if {"--help", "-h"} & set(arguments):
        print(help_text.page(PROGRAM, _PURPOSE, PredictOptions(), _ARGUMENTS))
        return 0
    model, words, options = _parse(arguments)
    output = options.output
    if output:
        require(not output.is_dir(), "--output", output, "a file")
        files.check_writable(output.parent, "--output")
    as_table = (options.format or str(output)[-3:].lower()) == "csv"
    if Path(model, "config.json").is_file():
        export = Run.load(model).export
        if not export:
            raise UsageError(
                f"{model} has no export; pipeline export {model} writes one"
            )
        model = str(export)
    with Client(model, options.timeout) as client:
        names = []
        for word in words:
            reads_names = word == "-" and not takes_texts(client.metadata())
            names += _read_names() if reads_names else [word]
        records = predict(
            client,
            names,
            top=options.top,
            batch_size=options.batch_size,
            column=options.column,
        )
        if output and output.exists():
            for path in find(names, (output.suffix.lower(),)):
                if os.path.exists(path) and output.samefile(path):
                    raise UsageError(
                        f"--output: {output} is one of the input files; choose another"
                    )
        with _open(output) as stream:
            written, skipped = _write(records, stream, as_table)
    if skipped:
        _say("answered", f"{written:,}, {skipped:,} skipped")
        return 1
    _say("answered", f"{written:,}")
    return 0


if __name__ == "__main__":
    # A run may be using the GPU; CUDA_VISIBLE_DEVICES=0 makes it available to a model
    # loaded here.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    run_command(main)
