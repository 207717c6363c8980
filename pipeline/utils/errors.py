"""User errors: a message of one line, with a remedy and an exit code."""

import difflib
import re
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

from pipeline.utils import output


class UsageError(Exception):
    """The request cannot be carried out; the message names the cause and the remedy."""

    exit_code = 2

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message alone."""
        return [f"{type(self).__name__}: {self}"]


class NoLabels(UsageError):
    """The data has examples, but not what is to be predicted."""


class NoCheckpoint(UsageError):
    """All checkpoints of a run are damaged."""

    exit_code = 3


class Diverged(UsageError):
    """The loss or the gradient is no longer finite; earlier checkpoints are good."""

    exit_code = 4


class OutOfMemory(UsageError):
    """A training call ran out of memory; smaller micro-batches may fit."""


class WorkerLost(UsageError):
    """A worker of the cluster was lost; the run can be resumed from its last
    checkpoint.
    """

    exit_code = 5


class Failure(Exception):
    """A check of an exported model failed; the message describes the problem."""


class Terminated(SystemExit):
    """SIGTERM, SIGHUP or SIGUSR1 was received; the exit code is 128 + its number."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        self.exit_code = 128 + number
        super().__init__(self.exit_code)


def suggest(wrong: str, names: Iterable[str]) -> str:
    """The end of an error message: the closest of `names`, or all of them if none is
    close.
    """
    names = sorted({*names})
    near = nearest(wrong, names, cutoff=0.5)
    return did_you_mean(near) if near else f"choose from {', '.join(names) or 'none'}"


def did_you_mean(names: Iterable[str]) -> str:
    """The end of an error message that suggests one name or several."""
    return f"did you mean {' or '.join(map(repr, names))}?"


def nearest(wrong: str, names: Iterable[str], cutoff: float) -> list[str]:
    """The names that a misspelled one may stand for; empty if none is close.

    Names that differ only in case come first, then names with these initials (`lr` for
    `learning_rate`), then the closest spelling, preferably of a name that starts with
    `wrong`. `cutoff` is the minimum similarity, as in `difflib`.
    """
    lower = wrong.lower()
    names = list(names)
    matches = [name for name in names if name.lower() == lower]
    if not matches and len(lower) > 1:
        matches = [name for name in names if _initials(name) == lower]
    if matches:
        return matches
    if len(lower) > 2:
        longer = [name for name in names if name.lower().startswith(lower)]
        if longer:
            return difflib.get_close_matches(wrong, longer, n=1, cutoff=0)
    return difflib.get_close_matches(wrong, names, n=1, cutoff=cutoff)


def _initials(name: str) -> str:
    return "".join(word[:1] for word in re.split("[-_]", name.lower()))


def quote(text: str) -> str:
    """The words of a user in quotes, on one line, and shortened."""
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}..."


def require_kind(value: Any, kind: Any, flag: str, expected: str) -> None:
    """Raises UsageError unless the function of an option returned this type."""
    if not isinstance(value, kind):
        raise UsageError(f"{flag} must return {expected}; got {value!r}")


def needs_package(user: str, package: str, extra: str) -> str:
    """The message about a package that is not installed; `extra` installs it, too."""
    return (
        f"{user} needs the package {package}: pip install {package} (or install this"
        f" package with its extra: '.[{extra}]')"
    )


def reason(error: Exception) -> str:
    """The message of an error in one line, without the context that TensorFlow adds.

    At most 200 characters.
    """
    text = getattr(error, "message", "") or str(error) or type(error).__name__
    if isinstance(error, UnicodeDecodeError):
        # TensorFlow quotes bytes that are not UTF-8.
        text = error.object.decode(errors="replace")
    # An indented message that starts with the code.
    is_in_user_code = text.startswith("in user code:")
    if is_in_user_code:
        text = re.sub(r"^ {4}", "", text, flags=re.MULTILINE)
    if is_in_user_code or text.startswith("Graph execution error:"):
        # A stack trace comes first.
        text = text.partition("\n\t [[")[0].rpartition("\n\n")[2]
    # An eager assertion prints one value per line; an assertion in a graph puts them in
    # brackets.
    text, _, values = text.partition("Summarized data: ")
    if values:
        lines = values.split("\n")
        text = " ".join(re.sub(r"^b(['\"])(.*)\1$", r"\2", line) for line in lines)
    text = text.strip().partition("\n")[0]
    # One node for each function that is called, and the step of the dataset.
    step = r"Error in user-defined function .*? with iterator: \S+: "
    text = re.sub(rf"^(\{{\{{.*?\}}\}} |{step})+", "", text)
    assertion = re.match(r"assertion failed: \[(.*)\]", text)
    if assertion:
        text = assertion[1].replace("] [", " ")
    text = text.partition(" [Op:")[0]
    # If the disk is full, the name of a temporary file comes first.
    full = "No space left on device|Disk quota exceeded|File too large"
    return re.sub(rf".*; ({full})$", r"\1", text)[:200]


def run_command(main: Callable[[list[str]], int | None]) -> None:
    """Runs `main(arguments)` as a program; a `UsageError` becomes one line and an exit
    code.

    If the reader closes the pipe early (`| head`), the command ends without a message.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.reconfigure(errors="backslashreplace")  # file names need not be Unicode
    code, message = _run(main)
    # Python would print a stack trace for another Ctrl-C; a signal that is ignored
    # stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if message and output.of_words(sys.argv) == "json":
        text = plain(message).removeprefix("error: ")
        output.write_json("error", text, {"code": code})
    elif message and sys.stderr is not None:
        print(plain(message), file=sys.stderr)
    sys.exit(code)


def _run(main: Callable[[list[str]], int | None]) -> tuple[int | None, str]:
    """The exit code of a command, and the message for stderr."""
    try:
        code = main(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
        return code, ""
    except UsageError as error:
        return error.exit_code, f"error: {error}"
    except KeyboardInterrupt:
        return 130, "interrupted"
    except Terminated as error:
        return error.exit_code, "terminated"
    except BrokenPipeError:
        sys.stdout = None  # the interpreter would fail again when it flushes
        return 141, ""
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return 2, f"error: {error.strerror or error}{where}"


def plain(text: str) -> str:
    """The text with escaped control characters, except for line breaks."""
    return "".join(map(_escape, text))


def _escape(character: str) -> str:
    is_control = unicodedata.category(character) == "Cc"
    if is_control and character != "\n":
        return repr(character)[1:-1]
    return character
