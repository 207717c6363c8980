"""The bar on a terminal and in a notebook, and the lines that take its
place in a file.
"""

import io
import re
import sys
import types

import pytest
import rich.console

from pipeline.utils import progress_bar
from pipeline.utils.console import say


class Terminal(io.StringIO):
    """A terminal, 100 characters wide, of which only the used control sequences are
    known.
    """

    encoding = "utf-8"

    def isatty(self):
        return True

    @property
    def screen(self):
        """The lines that a person sees, without trailing spaces."""
        lines, row, column = [""], 0, 0
        for code, text in re.findall(
            r"(\x1b\[[?\d;]*\w|[\r\n])|([^\x1b\r\n]+)", self.getvalue()
        ):
            if code == "\n":
                row, column = row + 1, 0
                lines += [""] * (row == len(lines))
            elif code == "\r":
                column = 0
            elif code == "\x1b[2K":
                lines[row] = ""
            elif code == "\x1b[1A":
                row -= 1
            else:
                assert not code or code.endswith("m"), f"unexpected {code!r}"
            lines[row] = (
                lines[row][:column].ljust(column)
                + text
                + lines[row][column + len(text) :]
            )
            column += len(text)
        return [line.rstrip() for line in lines]


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    return now


def attach(monkeypatch):
    """A terminal in place of both streams."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    found = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, found)
    return found


def test_on_a_terminal_lines_stay_whole_and_the_bar_leaves_nothing_behind(
    monkeypatch, clock
):
    terminal, long = attach(monkeypatch), "x" * 150
    with pytest.raises(KeyboardInterrupt), progress_bar.show(True):
        progress_bar.stage("opening", "photos")
        assert terminal.screen == ["opening    photos"]
        progress_bar.count("decoding", 1, 4)
        assert terminal.screen == ["opening    photos"], "at most twice a second"
        for done in (2, 3):
            clock[0] += 0.6
            progress_bar.count("decoding", done, 4)
            bar = terminal.screen[-1]
            say("warning", f"[red]{long}[/] :smile:")
        assert "███████████████░░░░░  75%  3 of 4 examples" in bar
        print("one", end="", flush=True)
        print(" two", file=sys.stderr)
        clock[0] += 0.6
        progress_bar.update("epoch 1/2", "a" * 200, 0.5)
        assert (
            terminal.screen[-1] == f"epoch 1/2  {'█' * 10}{'░' * 10}  50%  {'a' * 61}…"
        )
        progress_bar.finish("epoch 1/2  loss 0.5", "epoch 2/2")
        assert terminal.screen[-2:] == [
            "epoch 1/2  loss 0.5",
            f"epoch 2/2  {'░' * 20}   0%",
        ]
        raise KeyboardInterrupt
    said = f"warning    [red]{long}[/] :smile:"
    print("next")
    assert terminal.screen == [
        said,
        said,
        "one",
        " two",
        "epoch 1/2  loss 0.5",
        "next",
        "",
    ]
    assert sys.stdout is terminal and sys.stderr is terminal


def test_in_a_file_there_is_a_line_a_minute(capsys, clock, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar.show(True):
        progress_bar.stage("decoding", "6 examples")
        for done in range(1, 7):
            clock[0] += 25
            progress_bar.count("decoding", done, 6)
        clock[0] += 49
        progress_bar.finish("epoch 1/2  loss 0.5", "epoch 2/2")
        clock[0] += 49
        progress_bar.update("epoch 2/2", "", 0.1)
    progress_bar.stage("not", "shown")
    assert capsys.readouterr().out.splitlines() == [
        "decoding   6 examples",
        "decoding   33%  2 of 6 examples",
        "decoding   67%  4 of 6 examples",
        "decoding   100%  6 of 6 examples",
        "epoch 1/2  loss 0.5",
    ]


def test_in_a_notebook_one_output_changes_in_place(monkeypatch, clock, capsys):
    shown = []
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    # IPython is there in every notebook, not in the environment of the tests.
    display = types.ModuleType("IPython.display")
    display.display = lambda data, **more: shown.append((data, more))
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with progress_bar.show(True):
        progress_bar.stage("opening", "photos")
        clock[0] += 1
        progress_bar.count("decoding", 1, 2)
    texts = [data["text/plain"] for data, _ in shown]
    bar = "█" * 10 + "░" * 10
    assert texts == ["opening    photos", f"decoding   {bar}  50%  1 of 2 examples", ""]
    assert [more["update"] for _, more in shown] == [False, True, True]
    assert (
        len({more["display_id"] for _, more in shown}) == 1
        and capsys.readouterr().out == ""
    )
