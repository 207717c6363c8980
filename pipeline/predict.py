"""Predicts files with an exported model, loaded from its directory or behind a
server.
"""

import contextlib
import csv
import dataclasses
import io
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import numpy as np

from pipeline.config import cli_parser, help_text
from pipeline.config.validation import require
from pipeline.data import mask_files
from pipeline.report import box_pictures
from pipeline.report.run import Run
from pipeline.serving import arguments as model_arguments
from pipeline.serving import repository
from pipeline.serving.client import EXPECTED, Client
from pipeline.serving.file_predictions import (
    find,
    predict,
    returns_boxes,
    returns_masks,
    takes_texts,
)
from pipeline.utils import console, files
from pipeline.utils.errors import UsageError, plain, run_command
from pipeline.utils.image_sheets import png, sheet

PROGRAM = "pipeline predict"
_DRAWN = 16  # pictures
_MAX_LINES = 3  # about rows of a file that are skipped for the same reason
_PURPOSE = """\
Prints a model's prediction for each image or row, in order. Files that are damaged or
cannot be read are reported and skipped, and the exit code is 1. A model that draws
pictures takes no files, but --class, --seed and --guidance, and writes a sheet."""
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
    """Options of the requests, and of the written predictions."""

    format: Literal["jsonl", "csv", "text"] | None = None
    """One JSON object per line (jsonl), a table (csv), of boxes with a row for each; or
    lines for people (text), of boxes only. None: csv if --output ends in .csv, text for
    boxes that are printed, else jsonl.
    """
    output: Path | None = None
    """Write the predictions to this file, which appears once it is complete. If the
    server stops responding, FILE.part contains the predictions received so far. None:
    predictions are printed, and drawn pictures written to a .png file named after the
    model and its arguments.
    """
    count: Annotated[int, (1, 10**5)] | None = None
    """Number of pictures to draw. None: 16. Without --class, they are of all classes in
    turn.
    """
    pictures: Path | None = None
    """Write each image with its boxes to this directory, as JPEG; or each mask, as PNG
    with the numbers of the classes. None: no images are written.
    """
    top: Annotated[int, (1, 10**6)] = 1
    """Number of most probable classes to list, each with its probability."""
    batch_size: Annotated[int, (1, 10**6)] = 32
    """Images or rows per request."""
    column: str | None = None
    """Column of the texts or files in a table. None: the one of training, or one with a
    usual name, such as `text` or `image`.
    """
    timeout: Annotated[float, "positive"] = 30.0
    """Timeout of a request, in seconds."""


def _write(
    records: Iterable[dict[str, Any]], stream: TextIO, format: str
) -> tuple[int, int]:
    """Writes predictions as lines and reports skipped files; returns the number of
    both.
    """
    written = 0
    skipped = 0
    repeated: dict[tuple[str, str], int] = {}
    table = csv.writer(stream, lineterminator="\n")
    for record in records:
        if "error" in record:
            skipped += 1
            key = (record["file"], record["error"])
            repeated[key] = repeated.get(key, 0) + 1
            if repeated[key] <= _MAX_LINES:
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
        if count > _MAX_LINES:
            _say("skipped", f"{file}: {count - _MAX_LINES:,} more rows, likewise")
    return written, skipped


def _cells(record: Mapping[str, Any]) -> dict[str, Any]:
    cells = {}
    for name, value in record.items():
        if name != "top":
            cells[name] = json.dumps(value) if isinstance(value, list) else value
    for rank, prediction in enumerate(record.get("top", ())[1:], 2):
        for name, value in prediction.items():
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
            if "mask" in record:
                file = folder / f"{name}.png"
                mask_files.picture(record.pop("mask")).save(file)
                del record["probability"]  # of each pixel
                record["mask"] = str(file)
            else:
                picture = box_pictures.draw(Path(record["file"]), record)
                picture.save(folder / f"{name}.jpg", quality=90)
        yield record


def _draw(client: Client, model: str, words: list[str], options: PredictOptions) -> int:
    """Writes a sheet of pictures that the model draws for arguments in words."""
    given = dict(_pairs(words))
    for flag in ("format", "pictures", "column"):
        if getattr(options, flag) is not None:
            raise UsageError(
                f"--{flag} is not for models that draw pictures; remove it"
            )
    if options.output and options.output.suffix.lower() != ".png":
        raise UsageError(f"--output: {options.output} must end in .png")
    count = options.count or _DRAWN
    values = model_arguments.request(client.arguments, given, count)
    parts = []
    for start in range(0, count, options.batch_size):
        rows = slice(start, start + options.batch_size)
        prediction = client.predict(**{name: v[rows] for name, v in values.items()})
        parts.append(prediction["images"])
    images = np.concatenate(parts)
    path = options.output
    if path is None:
        texts = [text for pair in given.items() for text in pair]
        stem = "-".join([repository.select_version(Path(model)).parent.name, *texts])
        path = Path(re.sub(r"[^\w.-]+", "_", stem) + ".png")
    files.write_bytes(path, png(sheet(images, math.ceil(math.sqrt(count)))))
    _say("drawn", f"{console.pluralize(count, 'picture')}: {path}")
    return 0


def _say(name: str, text: str) -> None:
    print(f"{name:<10} {plain(text)}", file=sys.stderr, flush=True)


def _parse(words: list[str]) -> tuple[list[str], list[str], PredictOptions]:
    """Returns the model and the words that name files, the words of a model's own
    arguments if there are no files, and the options.
    """
    is_word = lambda word: word == "-" or not word.startswith("-")  # noqa: E731
    names = list(itertools.takewhile(is_word, words))
    rest = words[len(names) :]
    own: list[str] = []
    if len(names) == 1:
        known = cli_parser.flags(PredictOptions)
        rest, own = cli_parser.split(rest, known.__contains__)
    changes = cli_parser.changes(rest, PredictOptions)
    if not names:
        raise UsageError(_usage(words))
    return names, own, PredictOptions(**changes)


def _usage(words: list[str]) -> str:
    return (
        f"{PROGRAM} MODEL FILES takes {EXPECTED}, and then files, directories,"
        f" patterns or - for a list; got {' '.join(words)[:200]!r}"
    )


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """The names and values of options, each with one value."""
    rest = list(words)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"{flag} needs a value")
            value = rest.pop(0)
        if not flag.startswith("--"):
            raise UsageError(f"unexpected {flag!r} before the options")
        yield flag[2:].replace("-", "_"), value


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
        _say("kept", f"the predictions received so far are in {part}")
        raise
    part.replace(path)


def _format(output: Path | None, has_boxes: bool) -> str:
    """The format that the user has not chosen."""
    if output is None:
        return "text" if has_boxes else "jsonl"
    return "csv" if output.suffix.lower() == ".csv" else "jsonl"


def main(arguments: list[str]) -> int:
    """`pipeline predict MODEL [FILES] [--option VALUE ...]`.

    Returns 1 if a file was skipped.
    """
    if {"--help", "-h"} & set(arguments):
        print(help_text.page(PROGRAM, _PURPOSE, PredictOptions(), _ARGUMENTS))
        return 0
    (model, *words), own, options = _parse(arguments)
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
        if client.arguments and not words:
            return _draw(client, model, own, options)
        if client.arguments:
            raise UsageError(
                f"{model} draws pictures and takes no files: {PROGRAM} {model}"
                " --class NAME --count 16 --seed 0"
            )
        if not words:
            raise UsageError(_usage(arguments))
        if options.count is not None:
            raise UsageError("--count is for models that draw pictures; remove it")
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
        has_boxes = returns_boxes(client.metadata())
        if options.format == "text" and not has_boxes:
            raise UsageError("--format text is for models that find boxes; remove it")
        if options.pictures and not (has_boxes or returns_masks(client.metadata())):
            raise UsageError(
                "--pictures is for models that find boxes or masks; remove it"
            )
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
