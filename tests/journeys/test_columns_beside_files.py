"""Images and columns of a table as inputs of one network: trained, stopped and resumed,
exported, served and evaluated.
"""

import csv
import json

import interrupted_run
import keras
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy import special

from pipeline.evaluation import evaluate
from pipeline.fit import fit
from pipeline.serving.client import Client
from pipeline.serving.file_predictions import predict
from pipeline.training.train_step import forward
from pipeline.utils.errors import UsageError

COUNT = 240
SIDE = 6
OPTIONS = {
    "source": {"columns": ("age", "ward", "sex")},
    "target": "prediction",
    "data": {"test": 0.25, "augment": {"flip": {}}, "image_size": (SIDE, SIDE)},
    "model": "linear",
    "train": {
        "batch_size": 32,
        "learning_rate": 0.01,
        "optimizer": "adam",
        "epochs": 40,
        "ema": None,
        "label_smoothing": 0.0,
        "steps_per_execution": 4,
    },
    "export": {"batch_sizes": (1,)},
    "runtime": {"precision": "float32"},
    "log": {"tensorboard": False, "bar": False},
}


def write_table(root):
    """The prediction is yes for bright images of the young and dark images of the old."""
    generator = np.random.default_rng(0)
    rows = [["picture", "age", "sex", "ward", "prediction"]]
    (root / "files").mkdir()
    for number in range(COUNT):
        is_bright, is_old = generator.integers(2, size=2)
        pixels = generator.integers(0, 60, (SIDE, SIDE, 3)) + 150 * is_bright
        name = f"files/{number:03}.png"
        Image.fromarray(pixels.astype(np.uint8)).save(root / name)
        age = generator.integers(60, 90) if is_old else generator.integers(20, 50)
        cell = age if number % 20 else ""
        sex = ["f", "m"][generator.integers(2)]
        ward = "abcdefghijkl"[generator.integers(12)]
        prediction = "yes" if is_bright != is_old else "no"
        rows.append([name, cell, sex, ward, prediction])
    with (root / "patients.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that was stopped in its first epoch and continued, with its export."""
    root = tmp_path_factory.mktemp("patients")
    write_table(root)
    sections = {**OPTIONS, "run_directory": "run"}
    sections["source"] = {**OPTIONS["source"], "image": "picture"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        with pytest.MonkeyPatch.context() as stop:
            interrupted_run.stop_after(stop, calls=2)
            with pytest.raises(interrupted_run.Terminated):
                fit("patients.csv", **sections)
        run = fit("patients.csv", **sections)
    return root, run


def test_the_network_learns_what_depends_on_both(trained):
    _, run = trained
    assert run.config.recipe == "photos"
    assert run.task.title == "classes from image and columns"
    assert run.test["accuracy"] > 0.85, "0.5 without the image or without the columns"
    names = [column.name for column in run.evaluation.importances.columns]
    assert names[0] == "age" and set(names) == {"age", "sex", "ward"}


def test_both_engines_train_the_same_weights(trained, monkeypatch):
    root, _ = trained
    monkeypatch.chdir(root)
    weights = []
    for engine in ("model_fit", "gradient_tape"):
        options = {**OPTIONS, "source": {**OPTIONS["source"], "image": "picture"}}
        options["train"] = {**OPTIONS["train"], "epochs": 1, "engine": engine}
        options["export"] = {"enabled": False}
        other = fit("patients.csv", **options, run_directory=engine)
        weights.append(other.network.get_weights())
    for first, second in zip(*weights, strict=True):
        np.testing.assert_array_equal(first, second)


def test_the_export_answers_like_the_run_for_rows_as_in_the_file(trained):
    root, run = trained
    assert run.result["verification"]["passed"]
    with Client(root / run.export) as client:
        served = client.metadata()
        columns = {"age", "ward", "sex"}
        assert served["image_bytes"].inputs.keys() == {"image_bytes", *columns}
        assert served["serving_default"].inputs.keys() == {"images", *columns}
        records = list(predict(client, [root / "patients.csv"], batch_size=7))
    table = pd.read_csv(root / "patients.csv")
    assert [record["row"] for record in records] == list(range(COUNT))
    assert records[3]["file"].endswith("files/003.png")
    predictions = np.array([record["label"] for record in records])
    assert (predictions == table["prediction"]).mean() > 0.85
    in_memory = run.predict(table.assign(picture=str(root) + "/" + table["picture"]))
    assert list(in_memory["label"]) == predictions.tolist()
    changed = table.assign(age=110 - table["age"])
    changed.to_csv(root / "changed.csv", index=False)
    with Client(root / run.export) as client:
        others = list(predict(client, [root / "changed.csv"]))
    is_other = [a["label"] != b["label"] for a, b in zip(records, others, strict=True)]
    assert np.mean(is_other) > 0.5, "the age decides"


def test_an_image_that_is_missing_is_one_record(trained):
    root, run = trained
    table = pd.read_csv(root / "patients.csv").head(3)
    table.loc[1, "picture"] = "files/none.png"
    table.to_csv(root / "three.csv", index=False)
    with Client(root / run.export) as client:
        records = list(predict(client, [root / "three.csv"]))
    assert ["label" in record for record in records] == [True, False, True]
    assert records[1]["file"].endswith("files/none.png")
    assert "No such file" in records[1]["error"]


def test_the_column_of_files_may_have_another_name(trained):
    root, run = trained
    table = pd.read_csv(root / "patients.csv").head(3)
    table.rename(columns={"picture": "path"}).to_csv(root / "path.csv", index=False)
    table.rename(columns={"picture": "x"}).to_csv(root / "x.csv", index=False)
    with Client(root / run.export) as client:
        usual = list(predict(client, [root / "path.csv"]))
        named = list(predict(client, [root / "x.csv"], column="x"))
        with pytest.raises(UsageError, match="no column of files, .* --column names"):
            list(predict(client, [root / "x.csv"]))
        with pytest.raises(UsageError, match="no column 'y', but x, age"):
            list(predict(client, [root / "x.csv"], column="y"))
    assert usual == named and len(usual) == 3


def test_a_table_is_evaluated_like_the_data_of_the_run(trained, monkeypatch):
    root, run = trained
    monkeypatch.chdir(root)
    by_path = run.evaluate("patients.csv")
    frame = pd.read_csv("patients.csv")
    assert run.evaluate(frame).metrics == by_path.metrics
    with pytest.raises(UsageError, match="no column 'age'"):
        run.evaluate(frame.drop(columns="age"))


def test_the_files_say_how_to_send_a_file_with_columns(trained):
    root, run = trained
    serving = (root / run.export.parent / "SERVING.md").read_text()
    assert '"instances": [{"image_bytes": {"b64": content}, "age": ' in serving
    assert "pipeline predict http" in serving and "rows.csv" in serving
    report = (root / "run/report.html").read_text(encoding="utf-8")
    assert "could not be made" not in report and ">ward<" in report
    manifest = json.loads(
        (root / run.export / "assets.extra/manifest.json").read_text()
    )
    assert manifest["metadata"]["input_name"] == "picture"


def test_the_keras_model_takes_decoded_examples(trained):
    root, run = trained
    model = keras.models.load_model(root / "run/model.keras", compile=False)
    examples = run.splits["test"].take(np.arange(5))
    names = [tensor.name for tensor in model.inputs]
    assert names == ["codes", "gaps", "image", "numbers"]
    inputs = {name: examples[name] for name in names}
    _, logits, _ = forward(run.task, run.network, evaluate.batch_of(examples))
    np.testing.assert_allclose(
        model.predict(inputs, verbose=0), special.softmax(logits, axis=1), atol=1e-4
    )


def test_what_mixes_images_is_refused(trained, monkeypatch):
    root, _ = trained
    monkeypatch.chdir(root)
    options = {**OPTIONS, "source": {**OPTIONS["source"], "image": "picture"}}
    options["data"] = {"augment": {"cutmix": {}}, "image_size": (SIDE, SIDE)}
    with pytest.raises(UsageError, match="cutmix mixes images, but not the columns"):
        fit("patients.csv", **options)


def test_a_network_of_the_user_takes_all_inputs(trained, monkeypatch):
    root, _ = trained
    monkeypatch.chdir(root)

    def network(shapes, classes):
        inputs = {name: keras.Input(s, name=name) for name, s in shapes.items()}
        codes = keras.layers.Embedding(13, 2)(inputs["categories"])
        parts = [inputs["image"], inputs["features"], codes]
        x = keras.layers.Concatenate()([keras.layers.Flatten()(x) for x in parts])
        return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))

    options = {**OPTIONS, "source": {**OPTIONS["source"], "image": "picture"}}
    options["train"] = {**OPTIONS["train"], "epochs": 1}
    options |= {"model": network, "export": {"enabled": False}}
    run = fit("patients.csv", **options)
    examples = run.splits["test"].take(np.arange(5))
    batch = evaluate.batch_of(examples)
    inputs, _, _ = run.task.step_inputs(batch, batch["id"])
    _, outputs, _ = forward(run.task, run.network, batch)
    shares = special.softmax(run.task.target_outputs(outputs), axis=1)
    np.testing.assert_allclose(
        run.model.predict(inputs, verbose=0)[:, 0], shares[:, 1], atol=1e-4
    )
