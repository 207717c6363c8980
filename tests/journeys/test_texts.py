"""A table of texts with several labels: trained, stopped and resumed, exported
and served.
"""

import json

import export_metrics
import interrupted_run
import numpy as np
import pytest

from pipeline import evaluate, predict
from pipeline.fit import fit
from pipeline.serving.client import Client
from pipeline.utils.errors import UsageError

COUNT = 40
OPTIONS = {
    "data": {"test": 0.1},
    "train": {"batch_size": 8, "learning_rate": 0.1, "steps_per_execution": 4},
    "model": {"name": "bag", "buckets": 256},
    "export": {"batch_sizes": (1,)},
    "runtime": {"precision": "float32"},
    "log": {"tensorboard": False, "bar": False},
}
ODD = ["good film", "", "\U0001f600" * 20, b"\xff\xfe\0bad", "x " * 50_000]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that was stopped in its first epoch and continued, with its export."""
    root = tmp_path_factory.mktemp("texts")
    generator = np.random.default_rng(0)
    words = np.array(["good", "bad", "film", "plot", "the", "<b>", "\u00e9"])
    rows = ["text,labels"]
    for row in generator.choice(words, (COUNT, 8)):
        topics = {"film", "plot"}.intersection(row)
        rows.append(f"{' '.join(row)},{'|'.join(sorted(topics))}")
    (root / "reviews.csv").write_text("\n".join(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        sections = {**OPTIONS, "run_directory": "run", "epochs": 3}
        with pytest.MonkeyPatch.context() as stop:
            interrupted_run.stop_after(stop, calls=2)
            with pytest.raises(interrupted_run.Terminated):
                fit("reviews.csv", **sections)
        run = fit("reviews.csv", **sections)
    return root, run


def test_a_table_of_texts_is_trained_and_exported(trained):
    root, run = trained
    assert run.config.recipe == "texts" and run.task.metadata["target"] == "labels"
    assert len(run.history["loss"]) == 3
    assert run.history["loss"][-1] < run.history["loss"][0]
    assert run.result["verification"]["passed"]
    report = (root / "run/report.html").read_text(encoding="utf-8")
    assert "verified" in report and "could not be made" not in report
    assert "&lt;" in report and "<b>" not in report
    rows = (root / "run/predictions.csv").read_text().splitlines()
    assert len(rows) == 1 + run.test["examples"]


def test_the_export_is_measured_as_the_run(trained, monkeypatch):
    root, run = trained
    monkeypatch.chdir(root)
    evaluation = export_metrics.require_equal(run, "reviews.csv")
    assert "no loss" not in evaluation.text
    known = len(run.splits["train"])
    for found in (evaluation, run.evaluate("reviews.csv")):
        assert f"the model was trained on {known} of these {COUNT}" in found.text


def test_columns_with_other_names_are_named(trained, monkeypatch):
    root, run = trained
    monkeypatch.chdir(root)
    rows = (root / "reviews.csv").read_text().splitlines()
    (root / "new.csv").write_text("\n".join(["said,topics,text", *rows[1:]]))
    with pytest.raises(UsageError, match="no labels .*--source.label"):
        evaluate.main([str(run.directory), "new.csv"])
    words = ["--source.column", "said", "--source.labels", "topics"]
    for model in (run.directory, run.export):
        assert evaluate.main([str(model), "new.csv", *words, "--output", "new"]) == 0
        metrics = json.loads((root / "new/metrics.json").read_text())
        assert metrics["f1"] == pytest.approx(run.evaluate("reviews.csv").metrics["f1"])
    with pytest.raises(UsageError, match="--source.colum: table has no option"):
        evaluate.main([str(run.directory), "new.csv", "--source.colum", "said"])


def test_any_bytes_are_answered_as_by_the_run(trained, monkeypatch):
    root, run = trained
    monkeypatch.chdir(root)
    with Client(run.export) as client:
        predictions = client.predict(text=ODD)["probabilities"]
    assert predictions.shape == (len(ODD), 2) and np.isfinite(predictions).all()
    np.testing.assert_allclose(
        run.predict(text=ODD)["probabilities"], predictions, rtol=1e-4
    )


def test_files_of_texts_are_answered_by_the_command(trained, workplace):
    root, run = trained
    (workplace / "first.txt").write_text("the film is good")
    (workplace / "second.txt").write_bytes(b"\xff plot")
    export = str(root / run.export)
    files = ["first.txt", "second.txt"]
    assert predict.main([export, *files, "--output", "rows.jsonl"]) == 0
    rows = (workplace / "rows.jsonl").read_text().splitlines()
    expected = run.predict(text=["the film is good", b"\xff plot"])["probabilities"]
    for row, file, values in zip(rows, files, expected, strict=True):
        record = json.loads(row)
        assert record["file"] == file
        np.testing.assert_allclose(record["probabilities"], values, rtol=1e-4)
