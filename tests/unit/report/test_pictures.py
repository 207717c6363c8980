"""What a person looks at after a run: pictures, the table of classes,
predictions.csv.
"""

import csv
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from matplotlib.figure import Figure
from random_evaluations import evaluation_of_classes

from pipeline.report import evaluation, pictures, results
from pipeline.report.input_report import report_of
from pipeline.report.targets.classes import ClassReport
from pipeline.tasks.inputs.image import ImageInput

NAMES = ["$a_{$", "猫", "<b>", "a name that is much too long for the side of a picture"]


def test_the_most_confident_mistakes_are_shown_with_truth_probability_and_file():
    names = ["a", "b", "c"]
    found = evaluation_of_classes(names, wrong=[40, 7, 21])
    figure, text = pictures.mistakes(found), "3 of 60 test predictions are wrong"
    assert figure.get_suptitle() == text
    assert (
        f"{text}; the most confident: a/1040.jpg, c (0.950) instead of b" in found.text
    )
    empty = evaluation_of_classes(["a", "b", ""], wrong=[40])
    assert "a/1040.jpg, nothing (0.950) instead of b" in empty.text
    found = dataclasses.replace(found, split="data")
    assert pictures.mistakes(found).get_suptitle() == "3 of 60 predictions are wrong"
    titles = [
        "predicted c (0.95)\ntrue: b",
        "predicted c (0.85)\ntrue: b",
        "predicted b (0.75)\ntrue: a",
    ]
    assert [axes.get_title() for axes in figure.axes] == titles
    files = [f"a/{id}.jpg" for id in (1040, 1007, 1021)]
    assert [axes.get_xlabel() for axes in figure.axes] == files
    assert (
        len(pictures.mistakes(evaluation_of_classes(names, wrong=range(50))).axes)
        == pictures.SHOWN
    )
    nothing = pictures.mistakes(evaluation_of_classes(names, wrong=[]))
    assert nothing.get_suptitle() == "all 60 test predictions are right"
    cut = pictures.mistakes(
        evaluation_of_classes(["a directory of many photographs", "b"], wrong=[1])
    ).axes[0]
    assert cut.get_xlabel() == "... of many photographs/1001.jpg"


def test_curves_show_every_epoch_of_training_and_validation():
    history = {
        "loss": [2.0, 1.0, 0.01],
        "val_loss": [2.0, np.nan, 0.5],
        "gradient_norm": [1.0],
    }
    history |= {"learning_rate": [0.1, 0.1, 0.0], "f1": [0.1, 0.2, 0.3]}
    loss, f1, rate = pictures.curves(history).axes
    assert [axes.get_title() for axes in (loss, f1, rate)] == [
        "loss",
        "f1",
        "learning_rate",
    ]
    for line, name in zip(loss.lines, ("loss", "val_loss"), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), history[name])
    assert [t.get_text() for t in loss.get_legend().texts] == [
        "train 0.01",
        "validation 0.5",
    ]
    one = pictures.curves({"loss": [1.0]})
    assert [tick for tick in one.axes[0].get_xticks() if tick % 1] == []
    assert len(one.axes) == 1 and one._repr_png_().startswith(b"\x89PNG")
    assert "no epoch" in pictures.curves({}).get_supxlabel()


@pytest.mark.parametrize(
    ("names", "shape", "dtype"),
    [
        (NAMES, (50, 333, 3), np.uint8),
        ([f"class {n}" for n in range(40)], (8, 8, 1), np.uint8),
        (["a", "b"], (9, 7, 4), np.float32),
    ],
)
def test_any_names_and_images_are_written(tmp_path, capsys, names, shape, dtype):
    found = evaluation_of_classes(
        names, wrong=[3, 5], shape=shape, dtype=dtype, count=2 * len(names) + 60
    )
    results.show(found, tmp_path, {"loss": [1.0]})
    shown = capsys.readouterr().out
    written = {"curves.png", "mistakes.png", "confusion_matrix.png", "predictions.csv"}
    if len(names) > 30:
        written.add("confusion_matrix.csv")
    assert {path.name for path in tmp_path.iterdir()} == written
    assert "could not be" not in shown
    with (tmp_path / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found)
    assert [n for n, row in enumerate(rows) if row["correct"] == "False"] == [3, 5]
    truth, prediction = (
        names[found.table[name][3]] for name in ("truth", "prediction")
    )
    other = f"{found.table['probability_of_truth'][3]:.6g}"
    loss = f"{found.table['loss'][3]:.6g}"
    wanted = [f"{names[0]}/1003.jpg", truth, prediction, "0.95", other, "False", loss]
    columns = [
        "file",
        "truth",
        "prediction",
        "probability",
        "probability_of_truth",
        "correct",
        "loss",
    ]
    assert rows[3] == dict(zip(columns, wanted, strict=True))
    odd = dataclasses.replace(found, locate=lambda id: f"\udce9\n{id}")
    assert "mistakes.png" in results.show(odd, tmp_path)
    assert odd.text.count("\n") == found.text.count("\n")


def test_predictions_are_written_in_pieces(monkeypatch):
    found = evaluation_of_classes(["a", "b"], wrong=[1], count=10)
    whole = found.predictions.csv()
    monkeypatch.setattr("pipeline.evaluation.predictions._CHUNK", 3)
    assert b"".join(found.csv()) == whole
    assert whole.count(b"\n") == 11


def test_the_confusions_of_many_classes_are_a_table_and_a_list():
    names = [f"class {n}" for n in range(40)]
    found = evaluation_of_classes(names, wrong=[3, 5, 43], count=120)
    assert "confusion_matrix" not in found.metrics
    assert found.metrics["confusions"][0] == ["class 3", "class 4", 2]
    (table,) = found.tables().values()
    rows = set(zip(*table.values(), strict=True))
    assert ("class 3", "class 4", 2) in rows and ("class 0", "class 0", 3) in rows
    assert len(rows) == 42 and "class 4 (2)" in found.text


def test_what_fails_is_a_note(tmp_path, capsys, monkeypatch):
    found = evaluation_of_classes(["a", "b"], wrong=[1])

    def refused(*_):
        raise OSError("no space left")

    monkeypatch.setattr(evaluation.Evaluation, "csv", refused)
    monkeypatch.setattr(pictures, "curves", refused)
    written = results.show(found, tmp_path, {"loss": [1.0]})
    assert written == ["mistakes.png", "confusion_matrix.png"]
    shown = capsys.readouterr().out
    for name in ("predictions.csv", "curves.png"):
        assert f"{name} could not be written: no space left" in shown
    monkeypatch.setattr(ClassReport, "pictures", refused)
    assert results.show(found, tmp_path) == ["mistakes.png"]
    assert "pictures could not be written: no space left" in capsys.readouterr().out


def test_an_image_is_drawn_from_its_file_if_there_is_one():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    content = tf.io.encode_png(pixels).numpy()
    image = ImageInput({"image_shape": [8, 12, 3]})
    small = pixels[::5, ::5]
    for raw, shape in ((content, (40, 60, 3)), (b"damaged", (8, 12, 3))):
        axes = Figure().subplots()
        report_of(image).draw(axes, {"image": small, "raw": {"image": raw}})
        (drawn,) = axes.images
        assert drawn.get_array().shape == shape
        assert list(drawn.get_extent()) == [-0.5, 11.5, 7.5, -0.5]
