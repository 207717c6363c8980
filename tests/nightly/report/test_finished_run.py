"""`Run` in a notebook, opened by a later process, and the command `evaluate`."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import digit_files
import numpy as np
import pytest
from interrupted_run import changes

from pipeline import evaluate, predict
from pipeline.fit import fit
from pipeline.report.run import Run
from pipeline.runtime.signals import StopSignals
from pipeline.utils.console import numbers
from pipeline.utils.errors import UsageError


@pytest.fixture(scope="module")
def loaded(digits_run):
    """The shared run, as a process without it opens it."""
    return Run.load(digits_run.directory)


@pytest.fixture
def folder(digits_run, workplace):
    """Files of digits, and the accuracy of the shared run on them."""
    photos = workplace / "photos"
    return photos, digit_files.write(digits_run, photos)


def test_other_data_are_matched_by_the_names_of_their_classes(
    loaded, folder, digits_run
):
    path, accuracy = folder
    split = digits_run.splits["test"]
    arrays = split.column("image"), split.column("label")
    found = loaded.evaluate(path)
    assert found.split == "data" and found.metrics["accuracy"] == pytest.approx(
        accuracy
    )
    floats = arrays[0].astype("float32")
    for images in (arrays[0], floats):
        metrics = loaded.evaluate((images, arrays[1])).metrics
        assert metrics["accuracy"] == digits_run.test["accuracy"]
    named = arrays[0], arrays[1].astype(str)
    assert (
        loaded.evaluate(named).metrics["confusion_matrix"]
        == digits_run.test["confusion_matrix"]
    )
    last = {"images": arrays[0][arrays[1] > 6], "labels": arrays[1][arrays[1] > 6]}
    np.savez("last.npz", **last)
    np.savez("wrong.npz", **last, class_names=["7", "8"])
    assert set(loaded.evaluate("last.npz").predictions["truth"]) == {"7", "8", "9"}
    shutil.copytree(path / "7", "one/7")
    assert set(loaded.evaluate("one").predictions["truth"]) == {"7"}
    (path / "3").rename(path / "owl")
    for data, message in (
        (
            "wrong.npz",
            "the label of example 0 of wrong.npz must be from 0 to 9; got -1",
        ),
        (
            (np.ones((9, 4)), np.ones(9)),
            "images must be .*n, height, width.*; got float32 of shape .9, 4.;",
        ),
        (path, "the data has a class 'owl', unknown to the model; choose from 0, 1,"),
        ((floats / 255, arrays[1]), "are float32; the model takes uint8; scale, round"),
        (
            ((floats > 8).astype("float32"), arrays[1]),
            "are float32; the model takes uint8",
        ),
        ((floats - 1, arrays[1]), "are float32; the model takes uint8"),
        ("nowhere", "nowhere: no such file or directory"),
    ):
        with pytest.raises(UsageError, match=message):
            loaded.evaluate(data)


def test_without_its_data_a_run_shows_the_rest(workplace, npz):
    path, place = npz(), workplace / "run"
    options = {"model": {"name": "tiny"}, "export": {"enabled": False}, "epochs": 1}
    splits = {"validation": 0, "test": 0}
    source = {"name": "arrays", "path": path}
    fit(
        "digits",
        source=source,
        data=splits,
        batch_size=8,
        run_directory=place,
        **options,
    )
    path.unlink()
    run = Run.load(place)
    assert (
        run.test_split == "train"
        and run.predict(np.zeros((2, 6, 6, 1), "uint8"))["class"].shape
    )
    assert "train" in repr(run) and len(run._repr_html_()) > 1000
    with pytest.raises(UsageError, match=f"{place} has no export; pipeline export"):
        predict.main([str(place), "x.png"])
    for use in (run.evaluate, run.mistakes, lambda: evaluate.main([str(place)])):
        with pytest.raises(
            UsageError, match="examples.npz cannot .* pipeline evaluate .*run PATH"
        ):
            use()
    (place / "model.keras").unlink()
    with pytest.raises(UsageError, match="examples.npz cannot be read"):
        Run.load(place).predict(np.zeros((2, 6, 6, 1), "uint8"))
    (place / "result.json").write_text("[]")
    with pytest.raises(UsageError, match="damaged: result.json"):
        Run.load(place)


def test_an_interrupted_fit_in_a_notebook_returns_what_there_is(
    tmp_path, monkeypatch, capsys
):
    asked, original = [], StopSignals.reason

    def interrupted(stops, *arguments):
        asked.append(stops)
        if len(asked) == 8:  # in the second epoch
            os.kill(os.getpid(), signal.SIGINT)
        return original(stops, *arguments)

    monkeypatch.setattr(StopSignals, "reason", interrupted)
    monkeypatch.setattr(sys, "ps1", "In", raising=False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run = fit("digits", run_directory=tmp_path, **changes())
    finally:
        signal.signal(signal.SIGINT, before)
    said = capsys.readouterr().out
    assert f"; to continue: pipeline fit --resume {tmp_path} (in Python, " in said
    assert "unfinished: 1 of 3 epochs" in repr(run) and "continues" in repr(run)
    assert len(run.history["loss"]) == 1 and not run.result and not run.test
    later = Run.load(tmp_path)
    assert (
        later.history == run.history
        and run.evaluate().metrics == later.evaluate().metrics
    )
    for one, other in zip(
        run.model.get_weights(), later.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_the_command_measures_runs_and_exports_and_writes_tables_and_pictures(
    digits_run, folder, capsys
):
    path, accuracy = folder
    run, export = str(digits_run.directory), str(digits_run.export.parent)
    assert evaluate.main([run, "--output", "mine"]) == 0
    assert {p.name for p in Path("mine").iterdir()} == {
        *("metrics.json", "predictions.csv", "confusion_matrix.png", "mistakes.png"),
        "report.html",
    }
    found = json.loads(Path("mine/metrics.json").read_text())
    assert {name: found[name] for name in digits_run.test} == digits_run.test
    shown = capsys.readouterr().out
    assert "most often confused with" in shown and "--train.patience" not in shown
    assert (
        f"\ncalibrated {numbers(digits_run.test['calibrated'])}  (as predicted)"
        in shown
    )
    assert evaluate.main([export, str(path)]) == 0
    found = json.loads(Path("evaluated/digits-1/metrics.json").read_text())
    assert found["accuracy"] == pytest.approx(accuracy) and found["split"] == "data"
    shown = capsys.readouterr().out
    assert "\ndata " in shown and "train" not in shown
    assert f"\ncalibrated {numbers(found['calibrated'])}  (as predicted)" in shown
    one = str(next(path.glob("7/*")))
    assert [predict.main([name, one]) for name in (run, export)] == [0, 0]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0] == lines[1]
    split = digits_run.splits["test"]
    np.savez("test.npz", images=split.column("image"), labels=split.column("label"))
    assert evaluate.main([export, "test.npz", "--output", "mine"]) == 0
    found = json.loads(Path("mine/metrics.json").read_text())
    for name in ("loss", "accuracy", "calibration_error"):
        assert found[name] == pytest.approx(digits_run.test[name], rel=1e-4)
    assert found["confusion_matrix"] == digits_run.test["confusion_matrix"]
