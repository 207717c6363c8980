"""Predicts files with an exported model: in its directory, or behind a server."""

import contextlib
import csv
import dataclasses
import io
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import tyro

from pipeline.config import cli_parser
from pipeline.config.validation import require, require_path
from pipeline.serving import file_inputs
from pipeline.serving.client import EXPECTED, Client
from pipeline.serving.file_predictions import FilePredictor
from pipeline.utils import files
from pipeline.utils.errors import UsageError, plain, run_command

PROGRAM = "python -m pipeline.predict"
_MAX = 10**6


@dataclasses.dataclass(frozen=True)
class Options:
    """How to ask the model, and how to write its answers."""

    format: Literal["jsonl", "csv"] | None = None
    """A JSON object per line, or a table; None: by the name of --output, else jsonl."""
    output: Path | None = None
    """A file, which appears once it is complete. If the server stops answering, FILE.part contains
    the answers so far. Without it, answers are printed."""
    top: int = 1
    """Number of the most probable classes, each with its probability."""
    batch_size: int = 32
    """Images or rows in one request."""
    timeout: float = 30.0
    """Seconds for one request."""

    def __post_init__(self) -> None:
        for flag, number in (("--top", self.top), ("--batch-size", self.batch_size)):
            require(1 <= number <= _MAX, flag, number, f"from 1 to {_MAX:,}")
        seconds = f"seconds, more than 0 and at most {_MAX:,}"
        require(0 < self.timeout <= _MAX, "--timeout", self.timeout, seconds)
        if self.output is not None:
            require_path(self.output, "--output")
            is_file = self.output.is_file() or not self.output.exists()
            require(is_file, "--output", self.output, "a file")
            files.check_writable(self.output.parent, "--output")


def predict(
    model: str | Path | Client,
    words: Sequence[str | Path],
    *,
    top: int = 1,
    batch_size: int = 32,
    timeout: float = 30.0,
) -> Iterator[dict[str, Any]]:
    """Yields the answers of a model to files, one after the other.

    Args:
        model: Its directory or address, as `Client` takes it, or a client.
        words: Files, directories or patterns of images; of `.csv` or `.npy` for a model that takes
            rows of numbers.
        top: Number of the most probable classes.
        batch_size: Images or rows in one request.
        timeout: Seconds for one request.

    Returns:
        Records as from `FilePredictor.predict`.

    Raises:
        ServingError: The server stopped answering.
        UsageError: There is no such model, or it does not take files, or ranks fewer classes.
    """
    client = model if isinstance(model, Client) else Client(model, timeout)
    predictor = FilePredictor(client, top)
    return predictor.predict(file_inputs.find(map(str, words), predictor.endings), batch_size)


class _Writer:
    """Writes records as lines and counts them."""

    def __init__(self, stream: TextIO, options: Options) -> None:
        csv_name = options.output is not None and options.output.suffix.lower() == ".csv"
        self._format = options.format or ("csv" if csv_name else "jsonl")
        self._stream, self._table = stream, csv.writer(self, lineterminator="\n")
        self._columns: list[str] = []
        self._shows_progress = options.output is not None and sys.stderr.isatty()
        self._start = self._shown = time.monotonic()
        self.written = self.skipped = 0

    def add(self, record: dict[str, Any]) -> None:
        """Writes an answer, or reports a file that is skipped."""
        if "error" in record:
            self.skipped += 1
            row = f" row {record['row']}" if "row" in record else ""
            _say("skipped", f"{record['file']}{row}: {record['error']}")
            return
        self.written += 1
        if self._format == "jsonl":
            self.write(json.dumps(files.strict(record), ensure_ascii=False) + "\n")
        else:
            self._add_row(record)
        if self._shows_progress and time.monotonic() - self._shown > 0.2:
            self._shown = time.monotonic()
            print(f"\r{self.summary()}\x1b[K", end="\r", file=sys.stderr, flush=True)

    def _add_row(self, record: dict[str, Any]) -> None:
        cells = {name: value for name, value in record.items() if name != "top"}
        for rank, one in enumerate(record.get("top", ())[1:], 2):
            cells |= {f"{name}_{rank}": value for name, value in one.items()}
        if not self._columns:
            self._columns = list(cells)
            self._table.writerow(self._columns)
        self._table.writerow(
            json.dumps(cell) if isinstance(cell, list) else cell for cell in cells.values()
        )

    def write(self, text: str) -> None:
        """Writes text without control characters for a terminal: file names may contain any."""
        self._stream.write(plain(text) if self._stream.isatty() else text)

    def summary(self) -> str:
        """Returns the counts and the rate."""
        rate = self.written / max(time.monotonic() - self._start, 1e-3)
        skipped = f", {self.skipped:,} skipped" if self.skipped else ""
        return f"{self.written:,}{skipped}, {rate:,.{0 if rate > 10 else 1}f} per second"


def _say(name: str, text: str) -> None:
    print(f"{name:<10} {plain(text)}", file=sys.stderr, flush=True)


def _parse(arguments: list[str]) -> tuple[str, list[str], Options]:
    """Returns the model, the words for files, and the options, each of which takes one value."""
    words: list[str] = []
    options: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            words += rest
        elif word.startswith("-") and word != "-":
            options += [word, *itertools.islice(rest, "=" not in word)]
        else:
            words.append(word)
    given = Options(**cli_parser.changes(options, Options))
    if len(words) < 2:
        raise UsageError(
            f"{PROGRAM} MODEL FILES takes {EXPECTED}, and then files, directories, patterns or - "
            f"for a list; got {' '.join(arguments)[:200]!r}"
        )
    return words[0], words[1:], given


def _help() -> None:
    def command(
        model: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="MODEL")]],
        files: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILES")]],
        /,
        options: Annotated[Options, tyro.conf.arg(name="")],
    ) -> None:
        """Prints a model's answers to files, a line for each image or row, in their order.

        Files that are damaged or cannot be read are reported and skipped, with exit code 1.

        Args:
            model: A version; a model's directory, for the version that is served, which is the
                pinned one or the newest; http://HOST:8501/v1/models/NAME[/versions/N]; or
                grpc://HOST:8500/NAME[/N].
            files: Images, directories of them, or patterns; - for names on stdin. For a model that
                takes rows of numbers: .csv or .npy.
            options: How to ask and write.
        """

    tyro.cli(command, args=["--help"], prog=PROGRAM)


def _from_stdin() -> list[str]:
    """Returns names from stdin, one per line, or with zero bytes as `find -print0` prints them."""
    text = sys.stdin.buffer.read()
    names = text.split(b"\0") if b"\0" in text else text.splitlines()
    return [os.fsdecode(name) for name in names if name]


@contextlib.contextmanager
def _open(output: Path | None) -> Iterator[TextIO]:
    """Opens the output in UTF-8; names that are not valid Unicode are escaped as in JSON."""
    if output is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
        yield sys.stdout
        return
    path = output.resolve()  # a link stays a link
    part = path.with_name(f"{path.name}.part")

    def keep(answers: Path) -> None:
        answers.rename(part)
        _say("kept", f"the answers so far, in {part}")

    with files.written(path, keep) as stream:
        yield stream


def main(arguments: list[str]) -> int:
    """`python -m pipeline.predict MODEL FILES [--option VALUE ...]`; 1 if a file was skipped."""
    if {"--help", "-h"} & set(arguments):
        _help()
    model, words, options = _parse(arguments)
    with Client(model, options.timeout) as client:
        predictor = FilePredictor(client, options.top)
        ignored: set[str] = set()
        listed = [one for word in words for one in (_from_stdin() if word == "-" else [word])]
        names = file_inputs.find(listed, predictor.endings, ignored)
        taken = ", ".join(f"*{ending}" for ending in predictor.endings)
        if ignored:
            example = f"{len(ignored):,} images, such as {min(ignored)}"
            _say("note", f"ignored {example}; the model takes {taken}")
        if not names:
            raise UsageError(f"{' '.join(words)[:200]} contains no files; {model} takes {taken}")
        output = options.output
        if output and output.exists() and any(map(output.samefile, filter(os.path.exists, names))):
            raise UsageError(f"--output: {output} is one of the input files")
        with _open(output) as stream:
            writer = _Writer(stream, options)
            for record in predictor.predict(names, options.batch_size):
                writer.add(record)
    _say("answered", writer.summary())
    return 1 if writer.skipped else 0


if __name__ == "__main__":
    # A run may be using the GPU; CUDA_VISIBLE_DEVICES=0 makes it available to a model loaded here.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for number in (signal.SIGTERM, signal.SIGHUP):  # answers so far are kept
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    run_command(main)
