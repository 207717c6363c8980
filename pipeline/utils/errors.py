"""What the user got wrong, in one line: the error, the near-miss hint, the exit code."""

import contextlib
import difflib
import os
import re
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterable


class UsageError(Exception):
    """The request cannot be carried out as given; the message names the thing and the remedy."""

    exit_code = 2


class NoCheckpoint(UsageError):
    """All checkpoints of a run are damaged."""

    exit_code = 3


class Diverged(UsageError):
    """Training left the finite numbers; what was saved before is good."""

    exit_code = 4


class OutOfMemory(UsageError):
    """A training call did not fit into the memory; with smaller micro-batches it may."""


class WorkerLost(UsageError):
    """A worker of the cluster has gone; the run can be taken up after its last checkpoint."""

    exit_code = 5


class Failure(Exception):
    """A check of the proof has found something wrong; the message says what."""


class Terminated(SystemExit):
    """SIGTERM or SIGHUP came. Not caught where errors are handled; ends the process with code 143
    or 129."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)


def suggest(wrong: str, names: Iterable[str]) -> str:
    """End of an error message: the nearest of `names` if one is near, else all of them."""
    names = sorted(names)
    near = nearest(wrong, names, cutoff=0.5)
    return did_you_mean(near) if near else f"choose from {', '.join(names) or 'none'}"


def did_you_mean(names: Iterable[str]) -> str:
    """End of an error message that suggests one name, or any of several."""
    return f"did you mean {' or '.join(map(repr, names))}?"


def nearest(wrong: str, names: Iterable[str], cutoff: float) -> list[str]:
    """The names that a wrong one may stand for; none if no name is near.

    Those that differ from it in case alone; else those with these initials (`lr`:
    `learning_rate`); else the closest by spelling, one that begins with it before all others.

    Args:
        wrong: What was given.
        names: The names that there are.
        cutoff: Least similarity by spelling, from 0 to 1, as `difflib` counts it.
    """
    given, names = wrong.lower(), list(names)
    if same := [name for name in names if name.lower() == given]:
        return same
    words = {name: re.split("[-_]", name.lower()) for name in names}
    initials = {name: "".join(word[:1] for word in parts) for name, parts in words.items()}
    if len(given) > 1 and (same := [name for name in names if initials[name] == given]):
        return same
    longer = [name for name in names if len(given) > 2 and name.lower().startswith(given)]
    return difflib.get_close_matches(wrong, longer or names, n=1, cutoff=0 if longer else cutoff)


def one_line(name: str) -> str:
    """A name that may hold line breaks, as a message of one line shows it."""
    return re.sub(r"[^\S ]", lambda blank: repr(blank[0])[1:-1], name)


def reason(error: Exception) -> str:
    """What an error says, in one line, without what TensorFlow puts around it.

    Kept to 200 characters.
    """
    text = getattr(error, "message", "") or str(error) or type(error).__name__
    if isinstance(error, UnicodeDecodeError):  # TensorFlow quotes bytes, and its text is none then
        text = error.object.decode(errors="replace")
    within = text.startswith("in user code:")  # all of it is indented, and begins with the code
    text = re.sub(r"^ {4}", "", text, flags=re.MULTILINE) if within else text
    if within or text.startswith("Graph execution error:"):  # then where operations were defined
        text = text.partition("\n\t [[")[0].rpartition("\n\n")[2]
    # An assertion outside of a graph gives its message one value a line, inside in brackets.
    text, _, values = text.partition("Summarized data: ")
    if values:
        text = " ".join(re.sub(r"^b(['\"])(.*)\1$", r"\2", line) for line in values.split("\n"))
    text = text.partition("\n")[0]
    # One node for each function that is called, and the data set's step between them.
    step = r"Error in user-defined function .*? with iterator: \S+: "
    text = re.sub(rf"^(\{{\{{.*?\}}\}} |{step})+", "", text)
    if found := re.match(r"assertion failed: \[(.*)\]", text):
        text = found[1].replace("] [", " ")
    text = text.partition(" [Op:")[0]
    # Of a full disk TensorFlow names its temporary file first.
    full = "No space left on device|Disk quota exceeded|File too large"
    return re.sub(rf".*; ({full})$", r"\1", text)[:200]


def run_command(main: Callable[[list[str]], int | None]) -> None:
    """Runs `main(arguments)` as a program: one line and its exit code for a `UsageError`.

    A reader that closes the pipe early (`| head`) ends the command without a message. Once it is
    over, a Ctrl-C ends the process at once, without a word.
    """
    for number in range(3):  # a file opened next would get the number, and what is printed there
        with contextlib.suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:  # `print` takes stdout for it
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.reconfigure(errors="backslashreplace")  # the name of a file need not be Unicode
    try:
        code = _ended(main)
    except KeyboardInterrupt:  # a second one, while the first was told of
        code = 130
    # From here on Python would answer a Ctrl-C with a stack trace. Whoever is deaf to it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _ended(main: Callable[[list[str]], int | None]) -> int | None:
    """The exit code of a command, after what is to be said of its end."""
    try:
        code = main(sys.argv[1:])
        if sys.stdout is not None:  # it is None where the caller closed it
            sys.stdout.flush()
    except UsageError as error:
        print(f"error: {plain(str(error))}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except Terminated as error:
        print("terminated", file=sys.stderr)
        code = error.code
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            sys.stdout = None  # otherwise the interpreter complains again while it shuts down
            return 141
        where = f": {error.filename}" if error.filename else ""
        print(f"error: {plain(f'{error.strerror or error}{where}')}", file=sys.stderr)
        code = 2
    return code


def plain(text: str) -> str:
    """The text without what rules a terminal, and without endless words: names may be anything."""
    shown = (c if c == "\n" or unicodedata.category(c) != "Cc" else repr(c)[1:-1] for c in text)
    # No path is longer than 4,096 bytes.
    return re.sub(r"\S{4100,}", lambda word: f"{word[0][:100]}...{word[0][-100:]}", "".join(shown))
