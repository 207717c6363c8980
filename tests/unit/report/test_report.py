"""`report.html`: what it says, that it fails in parts only, and how a browser shows
it.
"""

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest
from random_evaluations import evaluation_of_classes
from report_text import FAILED, text_of

from pipeline.report import blocks, examples, page, panels, results, run_sections
from pipeline.report.input_report import InputReport
from pipeline.report.subject import Subject
from pipeline.report.target_report import TargetReport
from pipeline.report.targets.classes import ClassReport
from pipeline.utils import files


def test_a_model_that_is_no_better_than_guessing_is_warned_of():
    found = evaluation_of_classes(["a", "b"], wrong=range(30), count=61)
    content = page.render(Subject(found))
    (first,) = re.findall(r'<p class="lead bad">(.*)</p>', content)
    assert first.startswith("The model is no better than always predicting")
    assert first.endswith("do not use it.")


def test_few_examples_are_warned_of():
    found = evaluation_of_classes(["a", "b"], wrong=range(20), count=41)
    content = page.render(Subject(found))
    first, second = re.findall(r'<p class="lead warn">(.*)</p>', content)
    assert first.startswith("The accuracy is no better than always predicting")
    assert second.startswith("Only 41 test examples: the 95% confidence interval")
    low, high = second.rstrip(".").split()[-3::2]
    interval = f"{100 * float(low):.1f}-{float(high):.1%}"
    assert interval in text_of(content)  # as in the headline
    assert "Too few examples to tell (41" in text_of(content)


def test_long_recordings_are_played_until_the_room_for_them_is_used():
    class Player(InputReport):
        def html(self, example):
            return "<audio>" + "x" * 210_000

        def draw(self, axes, example):
            axes.plot([0, 1])

    class Sound:
        report = Player

    task = SimpleNamespace(input=Sound(), target=object())
    cards = examples.plain(task, {"id": np.arange(12)}, [f"{n}.wav" for n in range(12)])
    assert ["<audio>" in card.picture for card in cards] == [True] * 3 + [False] * 9
    assert all(card.picture for card in cards) and cards[11].caption == "11.wav"
    # Mistakes, the least certain ones, training examples, and those of two epochs.
    assert 5 * sum(len(card.picture) for card in cards) < 5e6


def test_counts_among_the_metrics_have_no_decimals():
    found = evaluation_of_classes(["a", "b"], wrong=[0])
    found = dataclasses.replace(found, metrics={**found.metrics, "words": 1076})
    assert "words 1,076 " in text_of(page.render(Subject(found)))


@pytest.mark.parametrize(
    ("correct", "prediction"),
    [(194, "Mostly: "), (150, "No, the model is overconfident by 0.220")],
)
def test_whether_probabilities_can_be_trusted_is_told(correct, prediction):
    columns = {
        "probability": np.full(200, 0.97),
        "correct": np.arange(200) < correct,
    }
    assert panels.reliability_diagram(columns).text.startswith(prediction)


def test_names_with_html_are_escaped():
    names = ["<script>alert(1)</script>", "</svg><b>", 'a & "b"']
    found = evaluation_of_classes(names, wrong=[3, 7])
    content = page.render(Subject(found))
    assert FAILED not in content
    assert "<script" not in content and "<b>" not in content
    assert names[0] in text_of(content) and names[2] in text_of(content)


@pytest.mark.parametrize("count", [2, 1000])
def test_any_number_of_classes_is_shown(count):
    names = [f"class {number}" for number in range(count)]
    content = page.render(
        Subject(evaluation_of_classes(names, [3], count=2 * count + 60))
    )
    assert FAILED not in content and len(content) < 2_000_000
    assert "class 0" in content


def test_examples_of_one_class_and_no_mistake_are_shown():
    found = evaluation_of_classes(["a", "b"], wrong=[], count=1)
    text = text_of(page.render(Subject(found)))
    assert "All 1 test predictions are right" in text and FAILED not in text
    assert "Classes without examples in this split: 1" in text


def test_a_part_that_fails_says_so_and_the_rest_is_shown(monkeypatch):
    found = evaluation_of_classes(["a", "b"], wrong=[1])

    def refused(*_):
        raise ValueError("<broken>")

    monkeypatch.setattr(ClassReport, "panels", refused)
    content = page.render(Subject(found))
    assert f"{FAILED}: &lt;broken&gt;" in content
    assert "1 of 60 test predictions are wrong" in content.lower()
    monkeypatch.setattr(ClassReport, "headline", refused)
    assert "1 of 60 test predictions are wrong" in page.render(Subject(found)).lower()


def test_a_full_disk_is_a_note(tmp_path, capsys, monkeypatch):
    def refused(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_text", refused)
    results.write_report(
        Subject(evaluation_of_classes(["a", "b"], wrong=[1])), tmp_path
    )
    shown = capsys.readouterr().out
    assert "report.html could not be written" in shown and "No space left" in shown


def test_an_answer_without_a_title_shows_its_numbers(monkeypatch):
    found = evaluation_of_classes(["a", "b"], wrong=[1])
    monkeypatch.setattr(ClassReport, "draw", TargetReport.draw)
    text = text_of(page.render(Subject(found)))
    assert "truth b prediction a probability 0.95" in text


def test_black_lines_take_the_color_of_the_page():
    figure = run_sections._curve("loss", {"loss": [1.0, 0.5], "val_loss": [1.0, 0.7]})
    picture, is_paper = blocks.embed(figure)
    assert not is_paper and "#000000" not in picture and "currentColor" in picture
    assert not re.search(r'<g id="', picture)
