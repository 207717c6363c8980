"""A progress bar on a terminal or in a notebook; lines in a file or a pipe.

The bar appears only within the block of `show`. On a terminal, text is printed above
it.
"""

import contextlib
import itertools
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

from pipeline.utils import output
from pipeline.utils.console import say, say_lines
from pipeline.utils.errors import plain


@contextlib.contextmanager
def show(enabled: bool) -> Iterator[None]:
    """Shows stages and progress during the block, if enabled."""
    bar = ProgressBar() if enabled else None
    with output.changed(bar=bar):
        try:
            yield
        finally:
            if bar:
                bar.remove()


def begin(name: str) -> None:
    """Ends the stage before, for `stage_seconds`."""
    output.current().stages.append((name, time.monotonic()))


def stage_seconds(start: float) -> dict[str, float]:
    """The seconds of each stage since `start`, a time of `time.monotonic`, in the order
    of their beginnings; `starting` comes before the first.
    """
    seconds: dict[str, float] = {}
    begins = [("starting", start)]
    stages = output.current().stages
    begins += [(name, begin) for name, begin in stages if begin >= start]
    for (name, first), (_, last) in itertools.pairwise(
        [*begins, ("", time.monotonic())]
    ):
        seconds[name] = round(seconds.get(name, 0.0) + last - first, 3)
    return seconds


def stage(name: str, text: str) -> None:
    """Shows at once the name of the stage that begins now."""
    begin(name)
    if bar := output.current().bar:
        bar.draw(name, text, None)


def is_due() -> bool:
    """Whether `update` would show something now."""
    bar = output.current().bar
    return bar is not None and time.monotonic() >= bar.due


def update(name: str, text: str, share: float) -> None:
    """Shows the fraction done: a bar twice a second, or a line about once a minute."""
    if is_due():
        output.current().bar.draw(name, text, share)


def count(name: str, done: int, total: int) -> None:
    """Shows how many examples are done, in any case when all of them are."""
    bar = output.current().bar
    if bar and (is_due() or (bar.in_place and done == total)):
        bar.draw(name, f"{done:,} of {total:,} examples", done / max(total, 1))


def finish(line: str, following: str, **fields: Any) -> None:
    """Prints a line that stays, and begins a bar with the name of the next stage, if
    any. `fields` are those of the event `epoch` in JSON.
    """
    say_lines("epoch", line, **fields)
    if bar := output.current().bar:
        bar.due = time.monotonic() + bar.seconds
        if bar.in_place:
            bar.draw(following, "", 0.0 if following else None)


class ProgressBar:
    """A line that changes in place, or lines where that is not possible."""

    def __init__(self) -> None:
        from rich.console import Console

        class Plain(Console):
            """Prints text unchanged; a process that is killed leaves the cursor
            visible.
            """

            def show_cursor(self, show: bool = True) -> bool:
                return False

        self._console = Plain(
            soft_wrap=True, markup=False, emoji=False, highlight=False
        )
        self._in_notebook = self._console.is_jupyter
        can_change = self._console.is_terminal and not self._console.is_dumb_terminal
        # FORCE_COLOR is not enough.
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self.in_place = self._in_notebook or (can_change and is_terminal)
        self.seconds = 0.5 if self.in_place else 50.0
        self._length = 20 if self._console.width >= 100 else 10
        self.due = time.monotonic() + self.seconds
        # rich's Live, or the identifier of an output of a notebook cell.
        self._display: Any = None

    def draw(self, name: str, text: str, share: float | None) -> None:
        """Shows a stage, with the fraction done if there is one."""
        self.due = time.monotonic() + self.seconds
        if not self.in_place:
            say(name, text if share is None else f"{share:.0%}  {text}")
            return
        bar = ""
        if share is not None:
            is_unicode = self._console.encoding.startswith("utf")
            done, rest = "█░" if is_unicode else "#."
            length = round(share * self._length)
            bar = f"{done * length}{rest * (self._length - length)} {share:4.0%}  "
        self._show(plain(f"{name:<10} {bar}{text}"))

    def _show(self, line: str) -> None:
        if self._in_notebook:
            from IPython.display import display

            is_new = self._display is None
            self._display = self._display or uuid.uuid4().hex
            display(
                {"text/plain": line},
                raw=True,
                display_id=self._display,
                update=not is_new,
            )
            return
        from rich.live import Live
        from rich.text import Text

        if self._display is None:
            self._display = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
            )
            self._display.start()
        text = Text(line, no_wrap=True, overflow="ellipsis")
        self._display.update(text, refresh=True)

    def remove(self) -> None:
        """Removes the line from the terminal or the notebook."""
        if self._display is not None and self._in_notebook:
            self._show("")
        elif self._display is not None:
            with contextlib.suppress(OSError):  # the terminal was closed
                self._display.stop()
        self._display = None
