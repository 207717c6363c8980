"""Training as a user meets it: the command, a dry run, repeated commands, errors."""

import json
import math
import os
import re
import signal
from pathlib import Path

import fork_server
import numpy as np
import pytest
from processes import run_module
from random_images import images_and_labels

from pipeline.config.command_line import configure
from pipeline.fit import fit
from pipeline.serving import repository
from pipeline.training import preflight
from pipeline.utils import files
from pipeline.utils.errors import UsageError

STAGES = ["opening", "decoding", "building", "tracing", "testing", "exporting"]


@pytest.fixture(scope="module")
def main_job(tmp_path_factory):
    """`pipeline fit` in an empty directory, with fewer epochs."""
    folder = tmp_path_factory.mktemp("main")
    return folder, run_module("pipeline.fit", "--train.epochs", 4, cwd=folder)


def test_the_main_job_ends_with_a_good_verified_model(main_job):
    folder, process = main_job
    assert (process.returncode, process.stderr) == (0, "")
    result = json.loads((folder / "runs/digits-1/result.json").read_text())
    assert (
        result["export"] == "saved_models/digits/1" and result["verification"]["passed"]
    )
    assert (folder / "saved_models/digits/1/saved_model.pb").is_file()
    assert result["recipe"] == "digits" and len(result["config_digest"]) == 64
    assert result["steps"] == 4 * 39 and result["epochs"] == 4
    assert result["examples_per_second"] > 0 and 0 < result["seconds"] < 300
    assert set(result["versions"]) >= {"python", "tensorflow", "keras", "numpy"}
    assert "train" not in result, "evaluated only if there is no other split"
    for split in ("validation", "test"):
        assert {"loss", "accuracy", "per_class", "confusion_matrix"} <= set(
            result[split]
        )


def test_the_console_names_every_output(main_job):
    process = main_job[1]
    lines = process.stdout.splitlines()
    assert lines[0] == "starting   digits: convnet on digits, 4 epochs"
    names = dict.fromkeys(line.partition(" ")[0] for line in lines)
    assert [name for name in names if name in STAGES] == STAGES, (
        "no silence of many seconds"
    )
    assert "run        digits in runs/digits-1" in lines
    assert any(
        line.startswith("data       train 1,258, validation 178")
        and "image 8x8x1 uint8" in line
        for line in lines
    )
    assert sum(line.startswith("epoch ") for line in lines) == 4
    assert any(
        line.startswith("test       loss") and "accuracy 0." in line for line in lines
    )
    verified = (
        "verified: the SavedModel gives the same predictions as the trained model"
    )
    assert f"export     saved_models/digits/1, {verified}" in lines
    assert "report     runs/digits-1/report.html" in lines
    assert lines[-1].startswith("next  ")
    assert lines[-1].endswith("pipeline verify saved_models/digits/1")


def test_the_run_directory_contains_what_is_promised(main_job):
    run = main_job[0] / "runs/digits-1"
    assert {p.name for p in run.iterdir()} == {
        "checkpoints",
        "config.json",
        "confusion_matrix.png",
        "curves.png",
        "decisions.json",
        "metadata.json",
        "model.keras",
        "log.jsonl",
        "mistakes.png",
        "predictions.csv",
        "report.html",
        "result.json",
        "source.json",
        "splits.npz",
        "tensorboard",
        ".lock",
    }
    assert len((run / "log.jsonl").read_text().splitlines()) == 4
    assert len(json.loads((run / "metadata.json").read_text())["class_names"]) == 10
    for decision in json.loads((run / "decisions.json").read_text()):
        assert decision["name"] and decision["value"] and decision["reason"]
    assert {p.name for p in (run / "tensorboard").iterdir()} == {
        "train",
        "validation",
        "test",
    }
    assert 1 <= len(list((run / "checkpoints").iterdir())) <= 3, (
        "only the two newest and the best"
    )


def test_a_dry_run_tries_everything_and_keeps_nothing(workplace, npz, capsys):
    images, labels = images_and_labels(600)
    path = npz(images, np.sort(labels))  # the first ones are all of one class
    before = sorted(workplace.rglob("*"))
    source = {"name": "arrays", "path": path}
    model = {"name": "tiny"}
    run = fit(
        "digits", dry_run=True, model=model, train={"batch_size": 8}, source=source
    )
    assert run.result["verification"]["passed"] and run.result["steps"] == 2
    assert set(run.splits["train"].column("label")) == set(range(3))
    assert sorted(workplace.rglob("*")) == before
    shown = capsys.readouterr().out
    assert "dry run    went through every stage; nothing was kept" in shown
    assert str(run.directory) not in shown, "it names a directory that is gone"
    assert not run.directory.exists()


def test_a_complete_run_is_not_trained_or_exported_again(digits_run, capsys):
    again = fit(digits_run.config.changed(run_directory=digits_run.directory))
    shown = capsys.readouterr().out
    assert (
        "was complete; nothing was trained" in shown
        and "cannot be written" not in shown
    )
    assert again.test == digits_run.test and again.history == digits_run.history
    assert again.export == digits_run.export
    assert repository.versions(again.export.parent).keys() == {1}
    for one, other in zip(
        again.network.get_weights(), digits_run.network.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_library_use(digits_run):
    assert set(digits_run.history) >= {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert all(len(values) == 3 for values in digits_run.history.values())
    assert len(repr(digits_run)) < 300, "a notebook shows it"
    rates = digits_run.history["learning_rate"]
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[-1] >= 0
    test = digits_run.splits["test"]
    examples = test.take(np.arange(len(test)))
    predictions = digits_run.predict(images=examples["image"])
    assert predictions["probabilities"].shape == (len(test), 10)
    accuracy = (predictions["class"] == examples["label"]).mean()
    assert accuracy == pytest.approx(digits_run.test["accuracy"])
    with pytest.raises(UsageError, match="a recipe must be"):
        fit(5)


def test_a_run_refuses_what_its_export_would(digits_run):
    """The table of refusals is in `serving/test_client.py`."""
    with pytest.raises(UsageError, match="did you mean 'images'"):
        digits_run.predict(image=np.zeros((1, 8, 8, 1), np.uint8))
    with pytest.raises(UsageError, match="the file is not a JPEG, PNG"):
        digits_run.predict("image_bytes", image_bytes=[b"none"])


def test_a_run_that_diverges_saves_nothing_and_ends_with_one_line(workplace):
    words = (
        "--train.optimizer sgd --train.learning-rate 1e30 --data.limit 200"
        " --train.epochs 2"
    )
    process = run_module("pipeline.fit", *words.split(), cwd=workplace)
    assert process.returncode == 4
    assert process.stderr.startswith(
        "error: training diverged: the loss or the gradient was not finite in 3 of 4"
        " steps of"
    )
    assert process.stderr.count("\n") == 1
    assert not Path("saved_models").exists()
    assert not Path("runs/digits-1/checkpoints").exists()


def test_results_are_strict_json(workplace):
    """Python would write NaN, which other readers refuse."""
    path = workplace / "x.json"
    files.write_json(
        path, {"a": [math.nan, 1.5], "b": {"c": -math.inf}, "d": [[1], [2]]}
    )
    text = path.read_text()
    values = json.loads(
        text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON")
    )
    assert values == {"a": [None, 1.5], "b": {"c": None}, "d": [[1], [2]]}
    assert "[ null, 1.5 ]" in text


def test_ctrl_c_names_the_command_that_resumes(workplace):
    words = ["--data.limit", "300", "--train.epochs", "300", "--log.no-tensorboard"]
    words += ["--model.name", "tiny", "--export.no-enabled"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    there, here = os.pipe()
    with (
        open("errors", "w+") as errors,
        open(there) as output,
        open(here, "w") as stdout,
        fork_server.Process(
            *("-m", "pipeline.fit", *words),
            cwd=workplace,
            env=env,
            stdout=stdout,
            stderr=errors,
        ) as process,
    ):
        stdout.close()
        for line in output:
            if line.startswith("epoch   3/300"):
                process.send_signal(signal.SIGINT)
                break
        rest = output.read()
        assert process.wait(120) == 130, rest + Path("errors").read_text()
    assert Path("errors").read_text() == "interrupted\n"
    assert re.search(
        r"after step \d+; to continue: pipeline fit --resume runs/dig", rest
    )
    for again in (
        [*words, "--run-directory", "runs/digits-1"],
        ["--resume", "runs/digits-1"],
    ):
        preflight.check(configure(again))
    assert (
        max(int(p.name[5:]) for p in Path("runs/digits-1/checkpoints").glob("step-*"))
        >= 18
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"batch_size": 5000, "accumulate": 2}}, "batch_size=5000: "),
        ({"data": {"limit": 2, "test": 0.4}}, "is empty"),
        (
            {"data": {"augment": {"crop": {"padding": 8}}}},
            "padding 8 is too large for images of 8x8",
        ),
    ],
)
def test_impossible_requests_leave_nothing_behind(workplace, changes, message):
    with pytest.raises(UsageError, match=message):
        fit("digits", **changes)
    assert not list(workplace.iterdir())
