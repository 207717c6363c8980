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
from pipeline.report import box_pictures
from pipeline.report.run import Run
from pipeline.serving.client import EXPECTED, Client
from pipeline.serving.file_predictions import (
    answers_boxes,
    find,
    predict,
    takes_texts,
)
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

    format: Literal["jsonl", "csv", "text"] | None = None
    """One JSON object per line (jsonl), a table (csv), of boxes with a row for each; or
    lines for people (text), of boxes only. None: csv if --output ends in .csv, text for
    boxes that are printed, else jsonl.
    """
    output: Path | None = None
    """Write the answers to this file, which appears once it is complete. If the server
    stops responding, FILE.part contains the answers received so far. None: answers are
    printed.
    """
    pictures: Path | None = None
    """Write each image with its boxes to this directory, as JPEG. None: no images are
    written.
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
    records: Iterable[dict[str, Any]], stream: TextIO, format: str
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
        if format == "text":
            stream.writelines(_box_lines(record))
        elif format == "csv":
            rows = _box_rows(record) if "boxes" in record else [_cells(record)]
            if not written:
                names = _BOX_COLUMNS if "boxes" in record else rows[0]
                table.writerow(names)
            table.writerows(row.values() for row in rows)
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


_BOX_COLUMNS = ("file", "label", "score", "left", "top", "right", "bottom")


def _box_rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each box; without boxes none."""
    rows = []
    names = record.get("labels") or record["classes"]
    for label, score, corners in zip(
        names, record["scores"], record["boxes"], strict=True
    ):
        values = (record["file"], label, score, *corners)
        rows.append(dict(zip(_BOX_COLUMNS, values, strict=True)))
    return rows


def _box_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """A line for an image, and one for each of its boxes."""
    yield f"{record['file']}  {record['count']:,} boxes\n"
    for row in _box_rows(record):
        corners = "".join(f"{row[side]:8.1f}" for side in _BOX_COLUMNS[3:])
        yield f"  {plain(str(row['label'])):20} {row['score']:.3f}{corners}\n"


def _with_pictures(
    records: Iterable[dict[str, Any]], folder: Path
) -> Iterator[dict[str, Any]]:
    """Writes a picture for each record, under the name of its file."""
    folder.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for record in records:
        if "error" not in record:
            name = stem = Path(record["file"]).stem
            while name in taken:
                name = f"{stem}-{len(taken)}"
            taken.add(name)
            picture = box_pictures.draw(Path(record["file"]), record)
            picture.save(folder / f"{name}.jpg", quality=90)
        yield record


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


def _format(output: Path | None, has_boxes: bool) -> str:
    """The format that the user has not chosen."""
    if output is None:
        return "text" if has_boxes else "jsonl"
    return "csv" if output.suffix.lower() == ".csv" else "jsonl"


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
    if options.pictures:
        files.check_writable(options.pictures, "--pictures")
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
        has_boxes = answers_boxes(client.metadata())
        for flag, is_used in {
            "--pictures": options.pictures is not None,
            "--format text": options.format == "text",
        }.items():
            if is_used and not has_boxes:
                raise UsageError(f"{flag} is for models that find boxes; remove it")
        if options.pictures:
            records = _with_pictures(records, options.pictures)
        format = options.format or _format(output, has_boxes)
        with _open(output) as stream:
            written, skipped = _write(records, stream, format)
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
