"""`report.html`: what it says, that it fails in parts only, and how a browser shows
it.
"""

import dataclasses
import html
import json
import re
import shlex
import shutil
import subprocess

import numpy as np
import pytest
from random_evaluations import evaluation_of

from pipeline.config import command_line
from pipeline.evaluation import robustness
from pipeline.fit import main
from pipeline.report import blocks, page, results, run_sections
from pipeline.report.run import Run
from pipeline.report.subject import Measured, Subject
from pipeline.tasks.targets import _panels
from pipeline.utils import files

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


def test_a_model_that_is_no_better_than_guessing_is_warned_of():
    found = evaluation_of(["a", "b"], wrong=range(20), count=41)
    content = page.render(Subject(found))
    (first, second) = re.findall(r'<p class="lead warn">(.*)</p>', content)
    assert first.startswith("The accuracy is no better than always predicting")
    assert second.startswith("Only 41 test examples: the 95% confidence interval")
    low, high = second.rstrip(".").split()[-3::2]
    interval = f"{100 * float(low):.1f}-{float(high):.1%}"
    assert interval in text_of(content)  # as in the headline
    assert "Too few examples to tell (41" in text_of(content)


def test_counts_among_the_metrics_have_no_decimals():
    found = evaluation_of(["a", "b"], wrong=[0])
    found = dataclasses.replace(found, metrics={**found.metrics, "words": 1076})
    assert "words 1,076 " in text_of(page.render(Subject(found)))


def test_probabilities_that_are_not_calibrated_say_why(digits_run):
    result = {**digits_run.result, "calibration": {"temperature": 1.0}}
    run = Run(digits_run.config, digits_run.directory, {}, result)
    text = text_of(page.render(Subject(digits_run.evaluation, run)))
    assert "not calibrated: all answers to the validation split are right" in text
    assert "calibrated: loss" not in text


def test_a_report_of_an_evaluation_names_what_was_measured(digits_run):
    command = "pipeline evaluate runs/digits-1 photos/new"
    measured = Measured("runs/digits-1", "photos/new", command)
    found = dataclasses.replace(digits_run.evaluation, split="data")
    content = page.render(Subject(found, digits_run, None, measured))
    text = text_of(content)
    assert "<title>Evaluation of runs/digits-1 on photos/new</title>" in content
    assert "On photos/new: accuracy" in text and FAILED not in text
    assert f"How to reproduce {command}" in text
    assert text.index("How to reproduce pipeline") < text.index("The original run")


@pytest.mark.parametrize(
    ("correct", "answer"),
    [(194, "Mostly: "), (150, "No, the model is overconfident by 0.220")],
)
def test_whether_probabilities_can_be_trusted_is_told(correct, answer):
    columns = {
        "probability": np.full(200, 0.97),
        "correct": np.arange(200) < correct,
    }
    assert _panels.reliability_diagram(columns).text.startswith(answer)


def test_the_errors_of_numbers_are_a_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(120, 2))
    rows = [f"{a},{b},{a + 2 * b}" for a, b in x]
    (tmp_path / "houses.csv").write_text("\n".join(["a,b,price", *rows]))
    words = "houses.csv --epochs 2 --export.no-enabled --run-directory run"
    main(words.split())
    text = text_of((tmp_path / "run/report.html").read_text())
    assert "Test R² " in text and " of price (0 = always predicting the mean)" in text
    errors = text[text.index("example predicted true error") :]
    errors = errors[: errors.index("Setup fact")]
    assert errors.count("of houses.csv") == 8 and FAILED not in text


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


def test_names_with_html_are_escaped():
    names = ["<script>alert(1)</script>", "</svg><b>", 'a & "b"']
    found = evaluation_of(names, wrong=[3, 7])
    content = page.render(Subject(found))
    assert FAILED not in content
    assert "<script" not in content and "<b>" not in content
    assert names[0] in text_of(content) and names[2] in text_of(content)


@pytest.mark.parametrize("count", [2, 1000])
def test_any_number_of_classes_is_shown(count):
    names = [f"class {number}" for number in range(count)]
    content = page.render(Subject(evaluation_of(names, [3], count=2 * count + 60)))
    assert FAILED not in content and len(content) < 2_000_000
    assert "class 0" in content


def test_examples_of_one_class_and_no_mistake_are_shown():
    found = evaluation_of(["a", "b"], wrong=[], count=1)
    text = text_of(page.render(Subject(found)))
    assert "All 1 test predictions are right" in text and FAILED not in text
    assert "Classes without examples in this split: 1" in text


def test_a_part_that_fails_says_so_and_the_rest_is_shown(monkeypatch):
    found = evaluation_of(["a", "b"], wrong=[1])

    def refused(*_):
        raise ValueError("<broken>")

    monkeypatch.setattr(type(found.task), "panels", refused)
    content = page.render(Subject(found))
    assert f"{FAILED}: &lt;broken&gt;" in content
    assert "1 of 60 test predictions are wrong" in content.lower()
    monkeypatch.setattr(type(found.task), "headline", refused)
    assert "1 of 60 test predictions are wrong" in page.render(Subject(found)).lower()


def test_a_full_disk_is_a_note(tmp_path, capsys, monkeypatch):
    def refused(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_text", refused)
    results.write_report(Subject(evaluation_of(["a", "b"], wrong=[1])), tmp_path)
    shown = capsys.readouterr().out
    assert "report.html could not be written" in shown and "No space left" in shown


def test_an_unfinished_run_is_told(digits_run, tmp_path):
    shutil.copytree(digits_run.directory, tmp_path / "run")
    (tmp_path / "run/result.json").unlink()
    (tmp_path / "run/decisions.json").unlink()
    log = (tmp_path / "run/log.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run/log.jsonl").write_text(log[0])
    run = Run.load(tmp_path / "run")
    text = text_of(page.render(Subject(digits_run.evaluation, run)))
    assert "Training is unfinished: 1 of 3 epochs" in text and FAILED not in text
    assert "The data of the run is not loaded here" in text
    assert "Automatic choices" not in text


def test_an_answer_without_a_title_shows_its_numbers():
    found = evaluation_of(["a", "b"], wrong=[1])
    found.task.objective.draw = lambda axes, example, answer: None
    text = text_of(page.render(Subject(found)))
    assert "truth b prediction a probability 0.95" in text


def test_robustness_is_measured_on_request(digits_run, monkeypatch):
    evaluation = digits_run.evaluation
    config = digits_run.config.changed(report={"robustness": "on"})
    run = Run(config, digits_run.directory, {}, digits_run.result)
    monkeypatch.setattr(robustness, "_EXAMPLES", 100)
    measured = robustness.measure(evaluation, config.train)
    rows = np.linspace(0, len(evaluation) - 1, 100).astype(int)
    assert measured.clean == pytest.approx(evaluation.table["correct"][rows].mean())
    for name, values in measured.corrupted.items():
        assert values[2] <= measured.clean, name
    assert measured.corrupted["noise"][2] < measured.corrupted["noise"][0]
    table = text_of(page.render(Subject(evaluation, run)))
    noise = " ".join(f"{value:.3f}" for value in measured.corrupted["noise"])
    assert f"noise {noise}" in table
    assert robustness.measure(evaluation, config.train, most_seconds=0) is None


def test_black_lines_take_the_color_of_the_page():
    figure = run_sections._curve("loss", {"loss": [1.0, 0.5], "val_loss": [1.0, 0.7]})
    picture, is_paper = blocks.embed(figure)
    assert not is_paper and "#000000" not in picture and "currentColor" in picture
    assert not re.search(r'<g id="', picture)


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_PROBE = """
<script>
addEventListener("load", () => {
  const broken = [...document.images].filter(image => !image.naturalWidth).length
  const root = document.documentElement
  document.body.dataset.probe = JSON.stringify({
    over: root.scrollWidth - root.clientWidth, width: root.clientWidth, broken,
    images: document.images.length, figures: document.querySelectorAll("svg").length,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    color: getComputedStyle(document.querySelector("svg text")).fill,
  })
})
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_a_browser_shows_it_without_errors(written, tmp_path, width, is_dark):
    """In a frame, because a window has a minimum width."""
    (tmp_path / "report.html").write_text(written[0] + _PROBE, encoding="utf-8")
    frame = f'<iframe src="report.html" style="border:0;width:{width}px"></iframe>'
    copy = """<script>addEventListener("load", () => { document.body.innerText =
        frames[0].document.body.dataset.probe })</script>"""
    (tmp_path / "frame.html").write_text(frame + copy)
    words = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
        "--enable-logging=stderr",
        "--virtual-time-budget=5000",
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--blink-settings=preferredColorScheme={0 if is_dark else 1}",
        "--window-size=1500,900",
        "--dump-dom",
        (tmp_path / "frame.html").as_uri(),
    ]
    shown = subprocess.run(
        [CHROMIUM, *words], capture_output=True, text=True, timeout=120
    )
    assert "CONSOLE" not in shown.stderr, shown.stderr[-2000:]
    probe = json.loads(html.unescape(re.search(r"\{.*\}", shown.stdout)[0]))
    assert probe["over"] <= 0 and probe["broken"] == 0
    assert probe["width"] in (width, width - 15)  # without or with a scroll bar
    assert probe["images"] > 20 and probe["figures"] > 5
    assert probe["dark"] == is_dark
    brightness = int(re.search(r"\d+", probe["color"])[0])
    assert (brightness > 128) == is_dark
