"""What a person looks at after a run: pictures, the table of classes,
predictions.csv.
"""

import csv
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from pipeline.config import registry
from pipeline.data.example_store import Memory
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.evaluation.answers import Evaluation, notes
from pipeline.report import pictures, results
from pipeline.utils.columns import Columns

NAMES = ["$a_{$", "猫", "<b>", "a name that is much too long for the side of a picture"]


def made(names, wrong, shape=(8, 8, 1), count=60, dtype=np.uint8):
    """Answers to random images; those at the positions `wrong` are the next class, with
    probabilities that fall from 0.95."""
    labels = np.arange(count) % len(names)
    answered = labels.copy()
    answered[wrong] = (labels[wrong] + 1) % len(names)
    sure = np.full(count, 0.6, np.float32)
    sure[wrong] = 0.95 - 0.3 * np.arange(len(wrong)) / max(1, len(wrong))
    rest = (1 - sure) / (len(names) - 1)
    probabilities = np.repeat(rest[:, None], len(names), axis=1)
    probabilities[np.arange(count), answered] = sure
    columns = {
        "id": np.arange(count) + 1000,
        "truth": labels,
        "class": answered,
        "probabilities": probabilities,
        "outputs": np.log(probabilities),
        "loss": -np.log(probabilities[np.arange(count), labels]),
    }
    pixels = np.random.default_rng(0).integers(0, 256, (count, *shape)).astype(dtype)
    examples = {"id": columns["id"], "image": pixels, "label": labels}
    metadata = {"class_names": names, "image_shape": list(shape)}
    task = registry.load("tasks", "image_classification")(metadata)
    split = Split(Memory(examples), np.arange(count))
    return Evaluation(
        "test",
        task,
        task.evaluate(columns),
        columns,
        split,
        lambda id: f"{names[0]}/{id}.jpg",
    )


def test_the_most_confident_mistakes_are_shown_with_truth_probability_and_file():
    names = ["a", "b", "c"]
    found = made(names, wrong=[40, 7, 21])
    figure, text = pictures.mistakes(found), "3 of 60 test predictions are wrong"
    assert figure.get_suptitle() == text
    assert f"{text}; the most confident: a/1040.jpg, c 0.950 instead of b" in found.text
    found = dataclasses.replace(found, split="data")
    assert pictures.mistakes(found).get_suptitle() == "3 of 60 predictions are wrong"
    titles = ["c 0.95\ntrue: b", "c 0.85\ntrue: b", "b 0.75\ntrue: a"]
    assert [axes.get_title() for axes in figure.axes] == titles
    files = [f"a/{id}.jpg" for id in (1040, 1007, 1021)]
    assert [axes.get_xlabel() for axes in figure.axes] == files
    assert len(pictures.mistakes(made(names, wrong=range(50))).axes) == pictures.SHOWN
    nothing = pictures.mistakes(made(names, wrong=[]))
    assert nothing.get_suptitle() == "all 60 test predictions are right"
    cut = pictures.mistakes(
        made(["a directory of many photographs", "b"], wrong=[1])
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
    found = made(
        names, wrong=[3, 5], shape=shape, dtype=dtype, count=2 * len(names) + 60
    )
    results.show(found, tmp_path, {"loss": [1.0]})
    shown = capsys.readouterr().out
    written = {"curves.png", "mistakes.png", "confusion_matrix.png", "predictions.csv"}
    assert {
        path.name for path in tmp_path.iterdir()
    } == written and "could not be" not in shown
    with (tmp_path / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found.answers["id"])
    assert [n for n, row in enumerate(rows) if row["correct"] == "False"] == [3, 5]
    truth, answer = (names[found.answers[name][3]] for name in ("truth", "class"))
    other = f"{found.answers['probabilities'][3].min():.6g}"
    wanted = [f"{names[0]}/1003.jpg", truth, answer, "0.95", other, "False"]
    columns = [
        "file",
        "truth",
        "prediction",
        "probability",
        "probability_of_truth",
        "correct",
    ]
    assert rows[3] == dict(zip(columns, wanted, strict=True))
    odd = dataclasses.replace(found, locate=lambda id: f"\udce9\n{id}")
    assert "mistakes.png" in results.show(odd, tmp_path)
    assert odd.text.count("\n") == found.text.count("\n")


def test_the_table_of_classes_starts_with_the_worst_and_names_the_confusion():
    found = made([f"class {n:02}" for n in range(20)], wrong=[3, 23, 43], count=200)
    lines = found.text.splitlines()
    header, worst = (" ".join(line.split()) for line in lines[:2])
    assert header == "class examples f1 precision recall most often confused with"
    assert worst == "class 03 10 0.824 1.000 0.700 class 04 (3)"
    assert lines[2].split()[:2] == ["class", "04"] and len(lines) == 18
    assert lines[-2].endswith("... and 5 more, which are better")
    few = made(
        [f"class {n:02}" for n in range(20)], wrong=[3], count=10
    ).text.splitlines()
    assert few[1].split()[:3] == ["class", "03", "1"] and len(few) == 13


def test_an_accuracy_that_says_little_is_noted():
    lines = made(["a", "b"], wrong=range(20), count=41).text.splitlines()
    assert lines[3] == "note       no better than always predicting 'a' (0.512)"
    assert (
        lines[4]
        == "note       only 41 test examples: the accuracy is uncertain by +-0.16"
    )
    right = made(["a", "b"], wrong=[], count=10)
    assert (
        "only 10 examples: the accuracy"
        in dataclasses.replace(right, split="data").text
    )
    assert "uncertain by +-0.10" in right.text and "no better" not in right.text
    assert "note" not in made(["a", "b"], wrong=[1], count=50).text
    one_class = {"accuracy": 0.5, "examples": 60, "per_class": {"a": {"examples": 60}}}
    assert not list(notes(one_class, "test"))


def test_probabilities_are_calibrated_and_what_fails_is_a_note(
    tmp_path, capsys, monkeypatch
):
    found = made(["a", "b"], wrong=[1])
    task = evaluate.calibrated_by(found.task, {"temperature": 2.0})
    answers = evaluate.answered(task, found.answers, found.examples)
    wanted = tf.nn.softmax(found.answers["outputs"] / 2)
    np.testing.assert_allclose(answers["probabilities"], wanted)

    def refused(*_):
        raise OSError("no space left")

    monkeypatch.setattr(Columns, "csv", refused)
    monkeypatch.setattr(pictures, "curves", refused)
    written = results.show(found, tmp_path, {"loss": [1.0]})
    assert written == ["mistakes.png", "confusion_matrix.png"]
    shown = capsys.readouterr().out
    for name in ("predictions.csv", "curves.png"):
        assert f"{name} could not be written: no space left" in shown
    monkeypatch.setattr(type(task), "pictures", refused)
    assert results.show(found, tmp_path) == ["mistakes.png"]
    assert "pictures could not be written: no space left" in capsys.readouterr().out
