"""Statistics of the benchmark: known timings give known medians, ratios
and verdicts.
"""

import dataclasses
import json
import math
from unittest import mock

import pytest

from benchmarks.scripts.timing import processes, record
from benchmarks.scripts.timing.rounds import (
    Line,
    MeasurementError,
    Rounds,
    Sample,
    Spread,
    repeat,
)

ALIKE = [10.0, 1.0, 1.0, 1.0]  # seconds; the first round is not counted


def planted(**seconds):
    """Contestants that take these seconds of wall time, half of it CPU time, for 8
    images.
    """
    order, left = [], {name: list(values) for name, values in seconds.items()}

    def contestant(name):
        def sample():
            order.append(name)
            if not left[name]:
                raise MeasurementError("no more")
            taken = left[name].pop(0)
            return Sample(8, taken, taken / 2)

        return sample

    return {name: contestant(name) for name in seconds}, order


def test_known_timings_give_known_lines_in_alternating_order():
    calls, order = planted(a=[10, 10, 1, 1, 1, 1, 1, 1], b=[10, 4, 2, 1])
    rounds = Rounds("training", calls, "a", 3)
    assert order[:6] == ["a", "b", "a", "a", "b", "a"]  # a, b, a again; a again, b, a
    line = rounds.line("a", "a / b", bound=(2, math.inf))
    assert (
        line.value == Spread(8, 8, 8) and line.cpu == 1 / 16 and line.verdict == "met"
    )
    assert line.ratio == Spread(2, 1, 4) and line.compared == "speed: a / b"
    assert rounds.line("b", "a / b", bound=(2.1, 3)).verdict == "NOT met"
    assert rounds.line("b", "b / a", "CPU").ratio == Spread(2, 1, 4)
    more = rounds.line("b", "b / a", "seconds", "s")
    assert more.value == Spread(2 / 8, 1 / 8, 4 / 8) and more.ratio == Spread(1, 0, 3)
    assert rounds.control().ratio == Spread(1, 1, 1)


def test_a_noisy_control_is_inconclusive_and_a_failure_is_one_line():
    calls, _ = planted(a=[1, 1, 1, 1.1], b=[])
    rounds = Rounds("training", calls, "a", 1)
    assert rounds.control().verdict == rounds.line("a", "a / a", bound=(0, 2)).verdict
    assert rounds.control().verdict == "inconclusive"
    assert rounds.line("b", "a / b") == Line("training", "b", note="no more")
    assert rounds.line("a", "a / b", bound=(0, 2)).note == "b: no more"
    assert repeat(lambda: 3, 0.0)().work == 3


def test_the_record_has_every_line_but_no_directories(tmp_path):
    bound = dataclasses.replace(
        Line("start-up", "--help", Spread(0.2, 0.1, 0.3), "s", 0.25)
    )
    lines = [
        dataclasses.replace(
            bound, compared="seconds", ratio=bound.value, bound=(0, 0.4)
        ),
        Line(
            "training", "resident step", Spread(1234.5, 12, 20000), "images/s", 2.5e-4
        ),
        Line("training", "end to end", ratio=Spread(1, 1, 1), bound=(0.97, math.inf)),
        Line(
            "training", "torch", note="/home/me/torch-env/bin/python cannot be started"
        ),
    ]
    shown = [record.row(line) for line in lines]
    assert shown[0][2:] == ["0.200 (0.100 to 0.300) s", "0.25 s", "seconds",
                            "0.200 (0.100 to 0.300)", "at most 0.4", "met"]  # fmt: skip
    assert shown[1][2:4] == ["1,234 (12.0 to 20,000) images/s", "250 us"]
    assert shown[2][5:] == ["1.000", "at least 0.97", "met"]
    facts = {
        "command": (
            "python -m benchmarks.scripts.bench ~/photos/cats --torch-python=../env/bin/python"
        )
    }
    folder = tmp_path / "new"
    paths = [record.write(folder, "bench_digits", facts, lines) for _ in "12"]
    assert [path.name for path in paths] == ["bench_digits.json", "bench_digits-2.json"]
    text = paths[0].read_text()
    values = json.loads(text)
    assert values["command"].endswith("bench cats --torch-python=python")
    assert "python cannot be" in text and "/home" not in text
    assert "images/s" in text and len(values["lines"]) == 4
    assert (
        values["lines"][2]["bound"] == [0.97, None]
        and values["lines"][0]["result"] == "met"
    )


def test_processes_are_timed_and_their_last_words_kept():
    sample, said, peak = processes.run_process("-c", "print(1)")
    assert sample.work == 1 and said == "1\n" and peak > 5
    with pytest.raises(MeasurementError, match="^ZeroDivisionError"):
        processes.run_process("-c", "1 / 0")


def test_an_interruption_ends_the_process(monkeypatch):
    started, popen = [], processes.subprocess.Popen
    opened = lambda *a, **k: started.append(popen(*a, **k)) or started[0]  # noqa: E731
    monkeypatch.setattr(processes.subprocess, "Popen", opened)
    monkeypatch.setattr(processes.os, "wait4", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        processes.run_process("-c", "import signal; signal.pause()")
    assert started[0].wait(10) == -9


def test_startup_and_memory_compare_the_right_processes(monkeypatch):
    seen = []

    def run_process(*words):
        seen.append(text := " ".join(map(str, words)))
        taken = {
            "60 --no-export": 5,
            " 60": 7.5,
            "first_step": 3,
            "": 2,
        }  # the first that is in it
        seconds = next(value for part, value in taken.items() if part in text)
        return (
            Sample(1, seconds, 1),
            "tensorflow" * text.count("importtime"),
            100 + len(text) % 2,
        )

    monkeypatch.setattr(processes, "run_process", run_process)
    found = {(line.name, line.compared): line for line in processes.startup(2)}
    assert (
        found["60 steps, export", "seconds: 60 steps, export - 60 steps"].ratio.median
        == 2.5
    )
    slow = found["first step", "time: first step / minimal Keras script"]
    assert slow.ratio.median == 1.5 and slow.verdict == "NOT met"
    assert found["--help", "TensorFlow modules"].verdict == "NOT met"
    assert found["--help", "seconds"].verdict == "NOT met" and not seen.clear()
    disk, _ = processes.memory(2)
    made, runs = seen[:2], seen[2:]
    assert [words.split("/")[-1] for words in made] == ["1 600", "10 6000"]
    assert len(runs) == 8 and runs[0].endswith("/1") and runs[1].endswith("/10")
    assert disk.verdict == "met" and disk.unit == "MB"
