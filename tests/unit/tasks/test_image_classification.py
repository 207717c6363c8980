"""Image classification: what is decoded, prepared, answered and measured."""

import numpy as np
import pytest
import tensorflow as tf
from random_evaluations import measure
from sklearn import metrics

from pipeline.config import registry
from pipeline.contracts import Info
from pipeline.report.target_report import report_of
from pipeline.utils.errors import UsageError

METADATA = {"class_names": ["cat", "dog", "cow"], "image_shape": [6, 4, 3]}


@pytest.fixture
def task():
    return registry.load("tasks", "image_classification")(METADATA)


def info(shape=(6, 4, 3), class_names=("cat", "dog"), image=tf.uint8, label=tf.int64):
    fields = {"image": tf.TensorSpec(shape, image), "label": tf.TensorSpec((), label)}
    return Info({"train": 1}, fields, class_names)


def test_metadata_come_from_the_source():
    def metadata(info, **options):
        return registry.load("tasks", "image_classification")(info, **options).metadata

    assert metadata(info()) == {
        "input": "image",
        "target": "classes",
        "class_names": ["cat", "dog"],
        "image_shape": [6, 4, 3],
    }
    assert metadata(info(), image_size=(2, 3))["image_shape"] == [2, 3, 3]
    any_size = info((None, None, None))
    assert metadata(any_size, image_size=(2, 3))["image_shape"] == [2, 3, 3]
    with pytest.raises(UsageError, match="--data.image-size HEIGHT WIDTH"):
        metadata(info((None, None, 3)))
    with pytest.raises(UsageError, match="at least 2 classes"):
        metadata(info(class_names=("cat",)))
    with pytest.raises(UsageError, match="image: .* uint8.*int32"):
        metadata(info(image=tf.int32))
    with pytest.raises(UsageError, match="labels .*integers.*float32"):
        metadata(info(label=tf.float32))


def test_encoded_and_raw_images_decode_alike(task):
    image = np.random.default_rng(0).integers(0, 256, (9, 13, 3), np.uint8)
    raw = task.decode({"image": tf.constant(image), "label": 0})["image"]
    encoded = task.decode({"image": tf.io.encode_png(image), "label": 0})["image"]
    assert raw.shape == (6, 4, 3) and raw.dtype == tf.uint8
    np.testing.assert_array_equal(raw, encoded)
    smooth = np.full((9, 13, 3), 200, np.uint8)
    np.testing.assert_array_equal(
        task.decode({"image": tf.constant(smooth), "label": 0})["image"], 200
    )


def test_answers_name_the_class(task):
    prediction = task.target.predict(
        tf.constant([[0.0, 2.0, 1.0], [5.0, 0.0, 0.0]], tf.float16), {}
    )
    assert prediction["label"].numpy().tolist() == [b"dog", b"cat"]
    assert prediction["class"].numpy().tolist() == [1, 0]
    assert prediction["probabilities"].dtype == tf.float32
    np.testing.assert_allclose(
        tf.reduce_sum(prediction["probabilities"], 1), 1, rtol=1e-6
    )


def test_a_model_that_abstains_withholds_unsure_labels_and_nothing_else(task):
    selective = task.with_metadata({"abstain_below": 0.6})
    probabilities = np.array([[0.8, 0.1, 0.1], [0.3, 0.5, 0.2], [0.1, 0.2, 0.7]])
    outputs = tf.constant(np.log(probabilities), tf.float32)
    prediction, whole = (
        selective.target.predict(outputs, {}),
        task.target.predict(outputs, {}),
    )
    assert prediction["label"].numpy().tolist() == [b"cat", b"", b"cow"]
    for name in ("class", "probabilities"):
        np.testing.assert_array_equal(prediction[name], whole[name])
    truth = {"label": np.array([0, 1, 0])}
    found, table = measure(selective.target, outputs, truth, np.zeros(3, np.float32))
    assert found["coverage"] == pytest.approx(2 / 3)
    assert found["selective_accuracy"] == 0.5
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert table["answered"].tolist() == [True, False, True]
    assert any(
        "66.7%" in line for line in report_of(selective.target).summary(found, "test")
    )
    (note,) = selective.target.prediction_notes()
    assert "`label` is empty" in note and "0.6" in note
    assert not task.target.prediction_notes()
    # Calibration comes before the threshold.
    sharper = selective.with_metadata({"temperature": 0.5})
    assert sharper.target.predict(outputs, {})["label"].numpy().tolist()[1] == b"dog"
    unsure = task.with_metadata({"abstain_below": 0.95})
    found, _ = measure(unsure.target, outputs, truth, np.zeros(3, np.float32))
    assert found["coverage"] == 0 and "selective_accuracy" not in found


def test_evaluation_equals_a_count_by_hand(task):
    truth = np.array([0, 0, 0, 1, 1, 0])
    probabilities = np.array(
        [[8, 1, 1], [6, 3, 1], [2, 7, 1], [1, 8, 1], [5, 4, 1], [1, 2, 7]], np.float32
    )
    outputs = np.log(probabilities)
    loss = np.arange(6, dtype=np.float32)
    found, table = measure(task.target, outputs, {"label": truth}, loss)
    np.testing.assert_array_equal(table["correct"], truth == probabilities.argmax(1))
    np.testing.assert_allclose(table["probability"], probabilities.max(1) / 10)
    assert found["examples"] == 6 and found["loss"] == 2.5
    assert found["accuracy"] == pytest.approx(3 / 6)
    assert found["top_2_accuracy"] == pytest.approx(5 / 6)
    assert found["confusion_matrix"] == [[2, 1, 1], [1, 1, 0], [0, 0, 0]]
    assert found["per_class"]["cat"] == {
        "precision": pytest.approx(2 / 3),
        "recall": pytest.approx(2 / 4),
        "f1": pytest.approx(metrics.f1_score(truth == 0, table["prediction"] == 0)),
        "examples": 4,
    }
    rare = {"label": np.array([0, 0, 0, 0, 1, 1])}
    some, table = measure(task.target, outputs[[0, 1, 0, 1, 0, 3]], rare, loss)
    assert some["balanced_accuracy"] == pytest.approx(
        metrics.balanced_accuracy_score(rare["label"], table["prediction"])
    )
    assert some["balanced_accuracy"] == (1 + 1 / 2) / 2 < some["accuracy"]
    for undecided in (
        np.full((6, 3), 1 / 3, np.float32),
        np.full((6, 3), np.nan, np.float32),
    ):
        ties, _ = measure(task.target, undecided, {"label": truth}, loss)
        assert ties["top_2_accuracy"] == 0, "a tie counts against the model"
    assert found["per_class"]["cow"] == {
        "precision": 0,
        "recall": 0,
        "f1": 0,
        "examples": 0,
    }
    assert all(
        type(scores["examples"]) is int for scores in found["per_class"].values()
    )


def test_labels_that_count_from_1_are_named(task):
    """Excluding the examples of the last class would shift the names of all others."""
    columns = {"id": np.arange(6), "label": np.array([1, 2, 3, 1, 2, 3])}
    with pytest.raises(UsageError, match="from 1 to 3; subtract 1"):
        task.check(columns, "train", str)
    task.check({**columns, "label": columns["label"] - 1}, "train", str)
