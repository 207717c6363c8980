"""`report.html`: what it says, that it fails in parts only, and how a browser shows
it.
"""

import dataclasses
import html
import json
import re
import shutil
import subprocess

import pytest
import report_text
from report_text import FAILED, text_of

from pipeline.report import page
from pipeline.report.run import Run
from pipeline.report.subject import Measured, Subject


@pytest.fixture(scope="module")
def written(digits_run):
    """The report of the shared run, and its words."""
    return report_text.written(digits_run)


def test_probabilities_that_are_not_calibrated_say_why(digits_run):
    result = {**digits_run.result, "calibration": {"temperature": 1.0}}
    run = Run(digits_run.config, digits_run.directory, {}, result)
    text = text_of(page.render(Subject(digits_run.evaluation, run)))
    assert "not calibrated: no temperature lowers the validation loss" in text
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
