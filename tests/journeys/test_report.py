"""`report.html`: what it says, that it fails in parts only, and how a browser shows
it.
"""

import dataclasses
import html
import re
import shlex

import pytest

from pipeline.config import command_line
from pipeline.report import page, run_sections

FAILED = "This part could not be made"


def text_of(content):
    """The words of a page, without tags."""
    body = content[content.index("<h1>") :]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


@pytest.fixture(scope="module")
def written(digits_run):
    """The report of the shared run, and its words."""
    content = (digits_run.directory / "report.html").read_text(encoding="utf-8")
    return content, text_of(content)


def test_the_report_answers_the_questions_of_a_reader(digits_run, written):
    content, text = written
    test = digits_run.test
    right = round(test["accuracy"] * test["examples"])
    assert f"Test accuracy {test['accuracy']:.1%} ({right} of 361; 95% CI" in text
    assert "verified: the SavedModel gives the same answers" in text
    assert "trained model (64 examples, largest difference" in text
    assert "train 1,258 validation 178 test 361" in text
    parameters = digits_run.model.count_params()
    assert f"{parameters:,} parameters" in text
    assert f"weights {digits_run.result['weights']}" in text
    worst = min(test["per_class"].items(), key=lambda item: item[1]["recall"])
    row = f"precision f1 {worst[0]} {worst[1]['recall']:.3f} 0."
    assert row in text  # the first after the header
    assert f"{test['calibrated']['calibration_error']:.3f} after calibration" in text
    assert f"{test['calibration_error']:.3f} before calibration" in text
    assert "pipeline fit digits --train.epochs 3" in text
    headings = [*page._SECTIONS, *page._RUN_SECTIONS]
    headings.remove("How to reproduce")  # of an evaluation
    headings.remove("Robustness")  # unless it would take long
    for heading in headings:
        assert f"<h2>{heading}</h2>" in content
    assert FAILED not in content and len(content) < 1_000_000
    assert not re.search(r'(src|href)="(?!data:|#)', content)


def test_the_time_of_each_stage_is_told(digits_run, written):
    stages = digits_run.result["stages"]
    assert {"starting", "building", "training", "testing", "exporting"} <= set(stages)
    assert sum(stages.values()) == pytest.approx(digits_run.result["seconds"], rel=0.2)
    assert "training" in written[1] and f"{stages['training']:.1f} s" in written[1]


def test_the_command_of_a_run_gives_its_config(digits_run):
    command = run_sections.exact_command(digits_run.config)
    words = shlex.split(command)[2:]
    assert command_line.configure(words).digest() == digits_run.config.digest()
    changed = digits_run.config.changed(
        data={"augment": {"flip": {}, "crop": {"padding": 2}}},
        model={"name": "mlp"},
        train={"shuffle": False, "class_weight": {"3": 2.0}, "clip_norm": 1.0},
    )
    words = shlex.split(run_sections.exact_command(changed))[2:]
    assert command_line.configure(words).digest() == changed.digest()
    other = dataclasses.replace(digits_run.config, recipe="custom")
    assert run_sections.exact_command(other) is None
