"""The summary of the predictions for a split: the table of classes, and notes."""

import dataclasses
from types import SimpleNamespace

from random_evaluations import evaluation_of_classes

from pipeline.config import command_line
from pipeline.report.run import Run


def test_the_table_of_classes_starts_with_the_worst_and_names_the_confusion():
    found = evaluation_of_classes(
        [f"class {n:02}" for n in range(20)], wrong=[3, 23, 43], count=200
    )
    lines = found.text.splitlines()
    header, worst = (" ".join(line.split()) for line in lines[:2])
    assert header == "class examples f1 precision recall most often confused with"
    assert worst == "class 03 10 0.824 1.000 0.700 class 04 (3)"
    assert lines[2].split()[:2] == ["class", "04"] and len(lines) == 18
    assert lines[-2].endswith("... and 5 more, which are better")
    few = evaluation_of_classes(
        [f"class {n:02}" for n in range(20)], wrong=[3], count=10
    ).text.splitlines()
    assert few[1].split()[:3] == ["class", "03", "1"] and len(few) == 13


def test_an_accuracy_that_says_little_is_noted():
    lines = repr(
        evaluation_of_classes(["a", "b"], wrong=range(30), count=61)
    ).splitlines()
    assert lines[-1] == (
        "warning    the model is no better than always predicting 'a' (accuracy"
        " 0.508): do not use it"
    )
    lines = evaluation_of_classes(
        ["a", "b"], wrong=range(20), count=41
    ).text.splitlines()
    assert lines[3] == (
        "note       the accuracy is no better than always predicting 'a' (0.512)"
    )
    assert lines[4] == (
        "note       only 41 test examples: the 95% confidence interval of the"
        " accuracy is 0.365 to 0.657"
    )
    right = evaluation_of_classes(["a", "b"], wrong=[], count=10)
    assert (
        "only 10 examples: the 95% confidence interval"
        in dataclasses.replace(right, split="data").text
    )
    assert "is 0.722 to 1.000" in right.text and "no better" not in right.text
    assert "note" not in evaluation_of_classes(["a", "b"], wrong=[1], count=50).text


def test_the_network_of_a_run_is_that_of_its_trainer(tmp_path):
    """Which has another one after a roll-back."""
    trainer = SimpleNamespace(model="first")
    run = Run(command_line.configure(["digits"]), tmp_path, {}, {}, trainer=trainer)
    assert run.network == "first"
    trainer.model = "second"
    assert run.network == "second"
