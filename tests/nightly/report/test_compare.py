"""`pipeline compare`: what it says about runs, and what it refuses."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

from pipeline.compare import compare, main
from pipeline.evaluation.target_evaluation import TargetEvaluation, evaluation_of
from pipeline.fit import fit
from pipeline.tasks.targets.labels import LabelTarget
from pipeline.tasks.targets.number import NumberTarget
from pipeline.utils.errors import UsageError

QUICK = {"export": False, "log": {"quiet": True}}


@pytest.fixture(scope="module")
def runs(digits_run, tmp_path_factory):
    """The shared run, the same with another seed, and a linear model."""
    folder = tmp_path_factory.mktemp("runs")
    other = fit(
        "digits",
        run_directory=folder / "other",
        train={"epochs": 3},
        runtime={"seed": 1},
        **QUICK,
    )
    linear = fit(
        "digits",
        run_directory=folder / "linear",
        train={"epochs": 3},
        model={"name": "mlp", "options": {"units": ()}},
        **QUICK,
    )
    return digits_run, other, linear


def test_two_seeds_do_not_differ_and_a_linear_model_is_worse(runs):
    good, other, linear = runs
    seeds = compare(good, other)
    assert all(item.better is None for item in seeds.differences)
    assert "accuracy: no significant difference" in repr(seeds)
    assert list(seeds.options["option"]) == ["runtime.seed"]
    page = seeds._repr_html_()
    assert "<td>runtime.seed</td><td>0</td><td>1</td>" in page
    assert "<td>accuracy</td>" in page and "no significant difference" in page
    compared = compare(good.directory, linear.directory)
    first = compared.differences[0]
    assert first.metric == "accuracy" and first.test == "McNemar's test"
    assert first.better == str(good.directory)
    assert first.values == pytest.approx(
        (good.test["accuracy"], linear.test["accuracy"])
    )
    losses = linear.test["loss"], linear.test["calibrated"]["loss"]
    assert compared.metrics["value of second"][1:3] == pytest.approx(losses, rel=1e-3)
    gained = len(compared.right_only(0, 1)) - len(compared.right_only(1, 0))
    right = (good.test["accuracy"] - linear.test["accuracy"]) * 361
    assert gained == round(right)
    files = compared.examples
    assert len(files["file"]) == len(compared.right_only(0, 1)) + len(
        compared.right_only(1, 0)
    )


def test_runs_that_differ_in_seed_only_are_one_model(runs):
    good, other, linear = runs
    compared = compare(good, other, linear)
    assert [len(model.runs) for model in compared.models] == [2, 1]
    first = compared.differences[0]
    accuracies = [run.test["accuracy"] for run in (good, other)]
    assert first.values[0] == pytest.approx(np.mean(accuracies))
    assert first.models[0] == f"{good.directory} (2 seeds)"
    assert first.better == first.models[0] and first.test == "paired bootstrap"
    assert "runtime.seed" not in compared.options["option"]


def test_the_command_writes_a_report(runs, tmp_path, monkeypatch, capsys):
    good, _, linear = runs
    monkeypatch.chdir(tmp_path)
    assert main([str(good.directory), str(linear.directory)]) == 0
    output = capsys.readouterr().out
    assert f"{good.directory} is better" in output
    folder = tmp_path / "compared/digits-1"
    content = (folder / "report.html").read_text(encoding="utf-8")
    for heading in ("Metrics", "Options that differ", "Training", "Examples"):
        assert f"<h2>{heading}</h2>" in content
    assert "could not be drawn" not in content
    assert content.count("<figure>") >= 12
    assert not re.search(r'(src|href)="(?!data:|#)', content)
    rows = (folder / "examples.csv").read_text().splitlines()
    assert len(rows) == 1 + len(compare(good, linear).examples["file"])


def test_other_test_examples_are_said(runs, tmp_path):
    good, _, linear = runs
    shutil.copytree(linear.directory, tmp_path / "run")
    path = tmp_path / "run/predictions.csv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *rows[100:]]))
    compared = compare(good, tmp_path / "run")
    assert not compared.are_paired and not compared.examples
    first = compared.differences[0]
    assert first.test == "bootstrap" and first.better == str(good.directory)
    assert "tested on different examples" in repr(compared)


def test_what_cannot_be_compared_is_one_line(runs, tmp_path):
    good, _, linear = runs
    with pytest.raises(UsageError, match="give at least two runs"):
        compare(good)
    with pytest.raises(UsageError, match="is given twice"):
        compare(good, linear, good.directory)
    renamed = tmp_path / "renamed"
    shutil.copytree(linear.directory, renamed)
    metadata = json.loads((renamed / "metadata.json").read_text())
    metadata["class_names"][-1] = "nine"
    (renamed / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(UsageError, match="solve different tasks: the classes"):
        compare(good, renamed)
    with pytest.raises(UsageError, match="at least two runs"):
        main([str(good.directory)])
    with pytest.raises(UsageError, match="nothing is not a run"):
        main([str(good.directory), "nothing"])
    unfinished = tmp_path / "unfinished"
    shutil.copytree(linear.directory, unfinished)
    (unfinished / "result.json").unlink()
    with pytest.raises(UsageError, match="not finished.*--resume"):
        compare(good, unfinished)
    damaged = tmp_path / "damaged"
    shutil.copytree(linear.directory, damaged)
    (damaged / "predictions.csv").write_text("file,truth\nexample 1\n")
    with pytest.raises(UsageError, match="is damaged"):
        compare(good, damaged)
    old = tmp_path / "old"
    shutil.copytree(linear.directory, old)
    config = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps({**config, "format": 0}))
    with pytest.raises(UsageError, match="version"):
        compare(good, old)
    x = np.random.default_rng(0).normal(size=(80, 2))
    rows = [f"{a:.3f},{b:.3f},{a + b:.3f}" for a, b in x]
    (tmp_path / "sums.csv").write_text("\n".join(["a,b,target", *rows]))
    numbers = fit(
        tmp_path / "sums.csv",
        run_directory=tmp_path / "n",
        train={"epochs": 1},
        **QUICK,
    )
    with pytest.raises(UsageError, match="solve different tasks"):
        compare(good, numbers)


def test_the_scores_of_targets_are_those_of_their_evaluators():
    rows = {"truth": np.array(["a|b", "", "b"], object)}
    rows["prediction"] = np.array(["a", "b", "b"], object)
    labels = LabelTarget({"class_names": ["a", "b"]})
    f1 = evaluation_of(labels).scores(rows)["f1"]
    assert f1.values.sum() / f1.weights.sum() == pytest.approx(2 * 2 / (3 + 3))
    rows = {"prediction": np.array(["1", "4"], object)}
    rows["truth"] = np.array(["2", "4"], object)
    rows["loss"] = np.array(["1.0", "0"], object)
    error = evaluation_of(NumberTarget({"target_shape": []})).scores(rows)[
        "mean_absolute_error"
    ]
    assert error.values.tolist() == [1, 0] and error.direction == -1
    assert dataclasses.is_dataclass(error)
    assert TargetEvaluation(labels).scores({"correct": np.array(["True", "False"])})[
        "accuracy"
    ].values.tolist() == [1, 0]
