"""Regression against what it must equal: closed-form least squares, NumPy, finite
differences.
"""

import csv
import json
from pathlib import Path

import diabetes_table
import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from diabetes_table import RECIPE
from report_text import FAILED, text_of
from sklearn import metrics as reference

from pipeline import evaluate, predict
from pipeline.config import registry
from pipeline.data import batching
from pipeline.fit import main
from pipeline.report.run import Run
from pipeline.runtime import environment
from pipeline.serving import version_manifest
from pipeline.training.model_builder import build
from pipeline.utils.errors import UsageError


def least_squares(split):
    """Coefficients and intercept of the closed form, float64, (features + 1,)."""
    features = split.column("features").astype(np.float64)
    design = np.column_stack([features, np.ones(len(features))])
    return np.linalg.lstsq(
        design, split.column("target").astype(np.float64), rcond=None
    )[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return diabetes_table.run(tmp_path_factory.mktemp("regression"))


def test_the_recipe_ends_with_a_verified_export(run):
    assert run.result["verification"]["passed"] and run.export.name == "1"
    traces = [key for key in run.network.step.compiled if key[0] == "outputs"]
    assert len(traces) == 1, "one trace of the model answers all splits"
    assert (run.directory / "predictions.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((run.directory / "result.json").read_text())
    assert result["examples_per_second"] > 0 and set(run.history) >= {
        "loss",
        "rmse",
        "mae",
    }
    assert run.history["rmse"][-1] == pytest.approx(
        run.history["loss"][-1] ** 0.5, rel=1e-5
    )
    metadata = json.loads((run.directory / "metadata.json").read_text())
    assert metadata == run.task.metadata and metadata["feature_names"][2] == "bmi"
    assert run.task.target.selection_metric == ("r2", 1)
    about = version_manifest.read(run.export)
    assert (about["metrics"]["r2"], about["evaluated_split"]) == (
        run.test["r2"],
        "test",
    )


def test_the_served_predictions_are_those_of_the_closed_form(run):
    from sklearn.datasets import load_diabetes

    rows, wanted = load_diabetes().data, least_squares(run.splits["train"])
    wanted = rows @ wanted[:-1] + wanted[-1]
    served = tf.saved_model.load(run.export).signatures["serving_default"]
    prediction = served(features=tf.constant(rows, tf.float32))
    assert set(prediction) == {"prediction"} and prediction["prediction"].shape == (
        442,
    )
    np.testing.assert_allclose(prediction["prediction"], wanted, rtol=1e-3)
    np.testing.assert_allclose(
        run.predict(features=rows)["prediction"], wanted, rtol=1e-3
    )
    test = run.splits["test"]
    predicted = wanted[test.column("id")]
    measured = reference.mean_squared_error(test.column("target"), predicted)
    assert run.test["mse"] == pytest.approx(measured, rel=1e-4)


MACHINE = environment.Machine("float32", False, tf.distribute.get_strategy(), ())


def coefficients(model, task):
    """Those of the trained network in units of the raw features, intercept last."""
    kernel, bias = (weight.astype(np.float64) for weight in model.get_weights())
    slopes = kernel[:, 0] / np.array(task.metadata["deviation"])
    return np.append(slopes, bias[0] - slopes @ np.array(task.metadata["mean"]))


@pytest.fixture(scope="module")
def diabetes():
    return diabetes_table.diabetes()


@pytest.mark.parametrize(
    "engine", ["model_fit", pytest.param("gradient_tape", marks=pytest.mark.long)]
)
def test_training_ends_at_the_closed_form(diabetes, engine):
    task, parts = diabetes
    keras.utils.set_random_seed(1)  # any start will do
    batches = batching.training(parts["train"], RECIPE.train, 1)
    model = build(task, RECIPE, MACHINE, batches)
    registry.load("engines", engine)(model, batches, None, [])
    found, wanted = coefficients(model, task), least_squares(parts["train"])
    assert np.linalg.norm(found - wanted) <= 1e-4 * np.linalg.norm(wanted)
    np.testing.assert_allclose(found, wanted, rtol=1e-3)


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
    # Each in the table and with the values of its row.
    assert errors.count("of houses.csv") == 16 and FAILED not in text


def people(count):
    """Rows of a table with columns of every kind; the label follows from them."""
    generator = np.random.default_rng(0)
    rows = ["Person Id,age,city,job,is new,since,remark,bought"]
    for number in range(count):
        age = "" if number % 11 == 0 else f"{generator.integers(18, 80)}"
        city = generator.choice(["Oslo", "Rome", "Bern"])
        is_new = generator.random() < 0.5
        since = f"2024-{generator.integers(1, 13):02}-{generator.integers(1, 29):02}"
        remark = generator.choice(["asks a lot of things", "never says a word"])
        bought = "yes" if (city == "Rome") != is_new else "no"
        job = f"job {number % 14}"  # of more than ten: embedded
        cells = [1000 + number, age, city, job, is_new, since, f"{remark} {number}"]
        rows.append(",".join(map(str, [*cells, bought])))
    return rows


@pytest.fixture(scope="module")
def people_run(tmp_path_factory):
    """A directory with `people.csv`, the run `runs/people-1` and its export."""
    folder = tmp_path_factory.mktemp("people")
    (folder / "people.csv").write_text("\n".join(people(400)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["people.csv", "--target", "bought", "--train.epochs", "30"]) == 0
    return folder


def test_a_table_of_any_columns_is_exported_and_served_by_their_names(
    people_run, monkeypatch, capsys
):
    monkeypatch.chdir(people_run)
    run = Run.load("runs/people-1")
    assert run.config.recipe == "tables" and run.result["verification"]["passed"]
    assert run.test["accuracy"] > 0.9
    kinds = [column["kind"] for column in run.task.metadata["columns"]]
    assert kinds == ["number", "category", "category", "boolean", "date", "text"]
    served = tf.saved_model.load(run.export).signatures["serving_default"]
    row = {
        "age": tf.constant([np.nan], tf.float32),
        "city": tf.constant(["Rome"]),
        "job": tf.constant(["job 3"]),
        "is_new": tf.constant([False]),
        "since": tf.constant(["2024-05-17"]),
        "remark": tf.constant(["never says a word"]),
    }
    assert served(**row)["label"].numpy() == [b"yes"]
    row["city"] = tf.constant(["a city that training has not seen"])
    assert np.isfinite(served(**row)["probabilities"]).all()


def test_rows_are_predicted_as_in_the_test_whatever_the_order_of_the_columns(
    people_run, monkeypatch, capsys
):
    monkeypatch.chdir(people_run)
    columns = [row.split(",") for row in people(400)]
    turned = [",".join(reversed(cells[:-1])) for cells in columns]
    Path("new.csv").write_text("\n".join(turned))
    assert predict.main(["saved_models/people", "new.csv"]) == 0
    output = capsys.readouterr()
    assert "does not take: Person Id" in output.err + output.out
    lines = [x for x in output.out.splitlines() if x.startswith("{")]
    labels = [json.loads(line)["label"] for line in lines]
    with open("runs/people-1/predictions.csv", newline="") as file:
        tested = list(csv.DictReader(file))
    for example in tested:  # such as row 7 of people.csv, whose header is row 1
        row = int(example["file"].split()[1]) - 2
        assert labels[row] == example["prediction"]
    assert evaluate.main(["saved_models/people", "people.csv"]) == 0
    header, first, *_ = turned
    cells = first.split(",")
    cells[-2] = "old"
    for problem, lines in {
        "new.csv has no column 'city', which": [header.replace("city", "town"), first],
        "new.csv, row 2: 'old' in the column 'age' is not": [header, ",".join(cells)],
    }.items():
        Path("new.csv").write_text("\n".join(lines))
        with pytest.raises(UsageError, match=problem):
            predict.main(["saved_models/people", "new.csv"])


def test_a_data_frame_is_predicted_and_evaluated(people_run, monkeypatch):
    """Also with its dates in another order, and another name of the truth."""
    monkeypatch.chdir(people_run)
    run = Run.load("runs/people-1")
    frame = pd.read_csv("people.csv")
    found = run.evaluate(frame, source={"label": "bought"}).metrics["accuracy"]
    labels = run.predict(frame)["label"]
    assert found == pytest.approx((labels == frame["bought"]).mean()) and found > 0.9
    frame["since"] = pd.to_datetime(frame["since"]).dt.strftime("%d.%m.%Y")
    frame = frame[[*reversed(frame.columns)]]
    np.testing.assert_array_equal(run.predict(frame)["label"], labels)
    pair = frame.drop(columns="bought"), frame["bought"]
    assert run.evaluate(pair).metrics["accuracy"] == pytest.approx(found)
    with pytest.raises(UsageError, match="the table has no column 'job'"):
        run.predict(frame.drop(columns="job"))
