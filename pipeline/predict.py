"""Asks an exported model about files: in its folder, or behind a server."""

import contextlib
import csv
import dataclasses
import functools
import io
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

from pipeline.config import cli_parser, help_text
from pipeline.config.validation import require, require_path
from pipeline.serving import file_inputs
from pipeline.serving.client import MEANT, Client
from pipeline.serving.file_predictions import Question
from pipeline.utils import files
from pipeline.utils.errors import UsageError, plain, run_command

PROGRAM = "python -m pipeline.predict"
_MOST = 10**6


@dataclasses.dataclass(frozen=True)
class Options:
    """How to ask, and how to write what is answered."""

    format: Literal["jsonl", "csv"] | None = None
    """A JSON object a line, or a table with commas; None: csv if --output is named so."""
    output: Path | None = None
    """A file, which appears once it is whole; what was answered before a server gave up is in
    FILE.part. Without it the answers are printed."""
    top: int = 1
    """So many of the most probable classes, each with its probability."""
    batch_size: int = 32
    """Images or rows in one request."""
    timeout: float = 30.0
    """Seconds that a server may take for one request."""

    @property
    def layout(self) -> str:
        """`jsonl` or `csv`."""
        named = self.output is not None and self.output.suffix.lower() == ".csv"
        return self.format or ("csv" if named else "jsonl")

    def __post_init__(self) -> None:
        for flag, number in (("--top", self.top), ("--batch-size", self.batch_size)):
            require(1 <= number <= _MOST, flag, number, f"from 1 to {_MOST:,}")
        seconds = f"seconds, more than 0 and at most {_MOST:,}"
        require(0 < self.timeout <= _MOST, "--timeout", self.timeout, seconds)
        if self.output is not None:
            require_path(self.output, "--output")
            require(not self.output.is_dir(), "--output", self.output, "a file")
            files.check_writable(self.output.parent, "--output")


def predict(
    model: str | Path | Client,
    words: Sequence[str | Path],
    *,
    top: int = 1,
    batch_size: int = 32,
    timeout: float = 30.0,
) -> Iterator[dict[str, Any]]:
    """What a model says of files, one after the other: records as of `Question.answers`.

    Args:
        model: Its folder or address, as `Client` takes it, or a client.
        words: Files, folders or patterns of images; of `.csv` or `.npy` for a model that takes
            rows of numbers.
        top: So many of the most probable classes.
        batch_size: Images or rows in one request.
        timeout: Seconds for one request.

    Raises:
        ServingError: The server gave up.
        UsageError: There is no such model, it takes no files, or names fewer classes.
    """
    client = model if isinstance(model, Client) else Client(model, timeout)
    question = Question(client, top)
    return question.answers(file_inputs.named(map(str, words), question.endings), batch_size)


class _Writer:
    """Records as lines."""

    def __init__(self, stream: TextIO, format: str) -> None:
        self._stream, self._format = stream, format
        self._shown = stream.isatty()
        self._header: list[str] | None = None

    def write(self, record: dict[str, Any]) -> None:
        if self._format == "jsonl":
            line = json.dumps(files.strict(record), ensure_ascii=False) + "\n"
        else:
            line = self._row(record)
        # A name may hold what rules a terminal.
        self._stream.write(plain(line) if self._shown else line)

    def _row(self, record: dict[str, Any]) -> str:
        cells = {name: value for name, value in record.items() if name != "top"}
        for place, one in enumerate(record.get("top", ())[1:], 2):
            cells |= {f"{name}_{place}": value for name, value in one.items()}
        row = _line([json.dumps(c) if isinstance(c, list) else c for c in cells.values()])
        if self._header is None:
            self._header = list(cells)
            row = _line(self._header) + row
        return row


def _line(cells: list[Any]) -> str:
    text = io.StringIO()
    # Python quotes a cell with an end of a line only if that is its own; readers know them all.
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().removesuffix("\r\n") + "\n"


@contextlib.contextmanager
def _opened(output: Path | None, progress: "_Progress") -> Iterator[TextIO]:
    """Where the answers go, in UTF-8; what a name holds beside is escaped as JSON does."""
    if output is not None and output.exists() and not output.is_file():
        with output.open("w", encoding="utf-8", errors="backslashreplace") as stream:
            yield stream  # a pipe or a device stays what it is
        return
    if output is not None:
        output = Path(os.path.realpath(output))  # a link stays one
        with files.written(output, functools.partial(progress.keep, output)) as stream:
            yield stream
        return
    if sys.stdout is None:
        raise UsageError("there is no stdout to print to; give --output FILE")
    # Lines go out one by one, for whoever follows them.
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    yield sys.stdout


class _Progress:
    """How many are answered, and what is skipped; it moves on a terminal with nothing else on."""

    def __init__(self, options: Options) -> None:
        self.skipped = 0
        self._answered = 0
        self._start = self._shown = time.monotonic()
        printed = options.output is None and sys.stdout is not None and sys.stdout.isatty()
        self._moves = sys.stderr is not None and sys.stderr.isatty() and not printed

    def count(self, record: dict[str, Any]) -> None:
        if "error" in record:
            self.skipped += 1
            row = f" row {record['row']}" if "row" in record else ""
            self.say("skipped", f"{record['file']}{row}: {record['error']}")
        else:
            self._answered += 1
        if self._moves and time.monotonic() - self._shown > 0.2:
            self._shown = time.monotonic()
            print(f"\r{self._counts()}\x1b[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        self.say("answered", self._counts())

    def keep(self, output: Path, answers: Path) -> None:
        """Gives the answers of a command that could not go on a name that is free, and tells it."""
        name = os.fsdecode(os.fsencode(output.name)[:200])  # of 255 bytes that there may be
        for number in itertools.count(1):
            part = output.with_name(f"{name}.part{number if number > 1 else ''}")
            with contextlib.suppress(FileExistsError):
                part.touch(exist_ok=False)
                break
        answers.rename(part)
        self.say("kept", f"{self._counts()}, in {part}")

    def say(self, name: str, text: str) -> None:
        if sys.stderr is not None:  # `print` would take stdout for it
            clear = "\r\x1b[K" if self._moves else ""
            print(f"{clear}{name:<10} {plain(text)}", file=sys.stderr, flush=True)

    def _counts(self) -> str:
        rate = self._answered / max(time.monotonic() - self._start, 1e-3)
        skipped = f", {self.skipped:,} skipped" if self.skipped else ""
        speed = f", {rate:,.{0 if rate > 10 else 1}f} a second" if self._answered else ""
        return f"{self._answered:,}{skipped}{speed}"


def _parsed(arguments: list[str]) -> tuple[str, list[str], Options]:
    """The model, the words that name files, and the options, each of which takes one value."""
    words: list[str] = []
    options: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            words, rest = words + rest, []
        elif word.startswith("-") and word != "-":
            options += [word] if "=" in word else [word, *rest[:1]]
            rest = rest if "=" in word else rest[1:]
        else:
            words.append(word)
    given = Options(**cli_parser.changes(options, Options))
    if len(words) < 2:
        raise UsageError(
            f"{PROGRAM} MODEL FILES takes {MEANT}, and then files, folders, patterns or - for a "
            f"list; received {' '.join(arguments)[:200]!r}"
        )
    return words[0], words[1:], given


_ABOUT = """\
Prints a model's answer for each image or row, in their order. Files that are broken or cannot be
read are named and skipped, with exit code 1."""
_ARGUMENTS = {
    "MODEL": "A version; the directory of a model, for the version that is served, which is the "
    "pinned one or the newest; http://HOST:8501/v1/models/NAME[/versions/N]; or "
    "grpc://HOST:8500/NAME[/N].",
    "FILES": "Images, directories of them, or patterns; - for names on stdin. For a model that "
    "takes rows of numbers: .csv or .npy.",
}


def _listed(words: list[str]) -> list[str]:
    """The words, with the names on stdin in the place of -."""
    if "-" not in words:
        return words
    if sys.stdin is None:
        raise UsageError("-: there is no stdin to read names from")
    names = file_inputs.listed(sys.stdin.buffer.read())
    return [name for word in words for name in (names if word == "-" else [word])]


def _require_other(output: Path | None, names: Sequence[str]) -> None:
    """Raises UsageError where the answers would take the place of what is asked about."""
    if output is None or not output.exists():
        return
    for name in names:
        with contextlib.suppress(OSError):
            if os.path.samefile(output, name):
                raise UsageError(f"--output: {output} is one of the files that are asked about")


def main(arguments: list[str]) -> int:
    """`python -m pipeline.predict MODEL FILES [--option VALUE ...]`; 1 if a file was skipped."""
    if {"--help", "-h"} & set(arguments):
        print(help_text.page(PROGRAM, _ABOUT, Options(), _ARGUMENTS))
        return 0
    model, words, options = _parsed(arguments)
    with Client(model, options.timeout) as client:
        question = Question(client, options.top)
        progress, others = _Progress(options), set()
        names = file_inputs.named(_listed(words), question.endings, others)
        taken = ", ".join(f"*{ending}" for ending in question.endings)
        if others:
            count = f"{len(others):,} file{'s' * (len(others) > 1)}"
            progress.say("note", f"{count} passed by, such as {min(others)}; taken are {taken}")
        if not names:
            raise UsageError(f"{' '.join(words)[:200]} names no files; {model} takes {taken}")
        _require_other(options.output, names)
        with _opened(options.output, progress) as stream:
            writer = _Writer(stream, options.layout)
            for record in question.answers(names, options.batch_size):
                progress.count(record)
                if "error" not in record:
                    writer.write(record)
    progress.end()
    return 1 if progress.skipped else 0


if __name__ == "__main__":
    # A run may be using the GPU; CUDA_VISIBLE_DEVICES=0 lends it to a model that is loaded here.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for number in (signal.SIGTERM, signal.SIGHUP):  # what was answered is kept
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    run_command(main)
