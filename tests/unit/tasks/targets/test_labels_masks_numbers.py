"""Several labels, masks and numbers against scikit-learn, closed forms and counts."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from random_evaluations import measure
from sklearn import metrics as reference

from pipeline.config import registry
from pipeline.contracts import Info
from pipeline.data.array_source import ArraySource
from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.report.target_report import report_of
from pipeline.tasks.targets.labels import LabelTarget, labels
from pipeline.tasks.targets.mask import IGNORED, MaskTarget, mask
from pipeline.tasks.targets.number import NumberTarget, number
from pipeline.utils.errors import UsageError

NAMES = ["hat", "tie", "bag"]
RANDOM = np.random.default_rng(0)


def test_labels_are_measured_as_by_scikit_learn():
    truth = RANDOM.integers(0, 2, (200, 3)).astype(np.uint8)
    outputs = (RANDOM.normal(size=(200, 3)) + truth).astype(np.float32)
    found, table = measure(
        LabelTarget({"class_names": NAMES}),
        outputs,
        {"labels": truth},
        np.ones(200, np.float32),
    )
    predictions = outputs >= 0
    assert found["f1"] == pytest.approx(
        reference.f1_score(truth, predictions, average="micro")
    )
    assert found["exact_match"] == pytest.approx(
        reference.accuracy_score(truth, predictions)
    )
    average = reference.average_precision_score(truth, tf.sigmoid(outputs).numpy())
    assert found["mean_average_precision"] == pytest.approx(average, abs=2e-3)
    for index, name in enumerate(NAMES):
        scores = found["per_class"][name]
        assert scores["f1"] == pytest.approx(
            reference.f1_score(truth[:, index], predictions[:, index])
        )
    np.testing.assert_array_equal(table["wrong"], (truth != predictions).sum(axis=1))


def test_labels_are_named_in_answers_and_tables():
    target = LabelTarget({"class_names": NAMES})
    outputs = tf.constant([[1.0, -1.0, 2.0], [-1.0, -1.0, -1.0]])
    predictions = target.predict(outputs, {})
    assert predictions["labels"].numpy().tolist() == [b"hat|bag", b""]
    table = evaluation_of(target).table(
        {**predictions, "loss": tf.zeros(2)},
        {"labels": tf.constant([[0, 1, 0], [1, 1, 1]])},
    )
    shown = evaluation_of(target).readable(table)
    assert shown["truth"].tolist() == ["tie", "hat|tie|bag"]
    assert shown["prediction"].tolist() == ["hat|bag", ""]


def test_the_loss_of_labels_is_the_mean_binary_crossentropy():
    y = RANDOM.integers(0, 2, (5, 3)).astype(np.float32)
    outputs = RANDOM.normal(size=(5, 3)).astype(np.float32)
    found = LabelTarget({"class_names": NAMES}).loss()(y, outputs)
    chance = 1 / (1 + np.exp(-outputs.astype(np.float64)))
    expected = -(y * np.log(chance) + (1 - y) * np.log(1 - chance)).mean(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def masks(metadata=None):
    size = {"class_names": NAMES, "mask_shape": [4, 6]}
    return MaskTarget({**size, **(metadata or {})})


def test_masks_are_measured_without_pixels_that_do_not_count():
    truth = RANDOM.integers(0, 3, (8, 4, 6)).astype(np.uint8)
    truth[:, 0] = IGNORED
    outputs = RANDOM.normal(size=(8, 4, 6, 3)).astype(np.float32)
    found, table = measure(masks(), outputs, {"mask": truth}, np.ones(8, np.float32))
    counts = truth != IGNORED
    predictions = outputs.argmax(axis=-1)
    iou = reference.jaccard_score(truth[counts], predictions[counts], average=None)
    assert found["mean_iou"] == pytest.approx(iou.mean())
    for name, expected in zip(NAMES, iou, strict=True):
        assert found["per_class"][name]["iou"] == pytest.approx(expected)
    precision, recall, _, pixels = reference.precision_recall_fscore_support(
        truth[counts], predictions[counts]
    )
    for index, name in enumerate(NAMES):
        measured = found["per_class"][name]
        assert measured["precision"] == pytest.approx(precision[index])
        assert measured["recall"] == pytest.approx(recall[index])
        assert measured["pixels"] == pixels[index]
    assert found["pixel_accuracy"] == pytest.approx(
        (truth == predictions)[counts].mean()
    )
    assert len(table["pixel_accuracy"]) == 8


def test_the_loss_of_a_mask_is_its_crossentropy_and_dice():
    y = RANDOM.integers(0, 2, (2, 4, 4))  # the third class does not occur
    y[0, 0] = IGNORED
    y[1, :3] = IGNORED
    y[1, 3] = 0
    outputs = RANDOM.normal(size=(2, 4, 4, 3)).astype(np.float32)
    found = masks().loss()(tf.constant(y), outputs)
    for row in range(2):
        truth = y[row][y[row] != IGNORED]
        shares = tf.nn.softmax(outputs[row]).numpy()[y[row] != IGNORED]
        expected = reference.log_loss(truth, shares, labels=[0, 1, 2])
        classes = np.unique(truth)
        for label in classes:
            share, is_label = shares[:, label], truth == label
            dice = (2 * share[is_label].sum() + 1) / (share.sum() + is_label.sum() + 1)
            expected += (1 - dice) / len(classes)
        assert float(found[row]) == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_a_mask_without_labelled_pixels_is_zero():
    y = np.full((1, 4, 4), IGNORED)
    assert float(masks().loss()(tf.constant(y), np.ones((1, 4, 4, 3), "f"))[0]) == 0


def test_keras_evaluates_a_mask_with_pixels_that_are_not_labelled():
    loss, _ = masks().standalone_loss()
    y = RANDOM.integers(0, 3, (2, 4, 4))
    y[0, 0] = IGNORED
    shares = tf.nn.softmax(RANDOM.normal(size=(2, 4, 4, 3)).astype(np.float32))
    counts = y != IGNORED
    expected = reference.log_loss(y[counts], shares.numpy()[counts], labels=[0, 1, 2])
    found = float(loss(tf.constant(y), shares))  # a mean of these pixels
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_crossentropy_of_a_mask_leaves_out_pixels_without_a_class():
    loss = registry.load("losses", "crossentropy")({"target": "mask"})
    y = RANDOM.integers(0, 3, (2, 4, 4)).astype(np.uint8)
    y[0, 0] = y[1] = IGNORED
    outputs = RANDOM.normal(size=(2, 4, 4, 3)).astype(np.float32)
    truth = y[0][y[0] != IGNORED]
    shares = tf.nn.softmax(outputs[0]).numpy()[y[0] != IGNORED]
    expected = [reference.log_loss(truth, shares, labels=[0, 1, 2]), 0]
    np.testing.assert_allclose(loss(tf.constant(y), outputs), expected, rtol=1e-5)


def png(array):
    return tf.io.encode_png(array if array.ndim == 3 else array[..., None])


def test_masks_are_decoded_and_resized_to_the_nearest_pixel():
    values = np.kron(RANDOM.integers(0, 3, (4, 6)), np.ones((2, 2))).astype(np.uint8)
    geometry = tf.constant([0.5, 0.5, 0, 0, 8, 12])
    for raw in (tf.constant(values), png(values)):
        found = masks().decode({"mask": raw}, geometry)["mask"]
        assert found.dtype == tf.uint8
        np.testing.assert_array_equal(found, values[::2, ::2])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (np.zeros((5, 12), np.uint8), "another size"),
        (np.full((8, 12), 3, np.uint8), "not from 0 to 2, nor 255"),
        (tf.constant(b"no PNG"), "a file of class numbers, of a palette or"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(raw, message):
    geometry = tf.constant([0.5, 0.5, 0, 0, 8, 12])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        masks().decode({"mask": tf.constant(raw)}, geometry)


def test_the_pixel_accuracy_respects_weights():
    (metric,) = masks().metrics()
    y = RANDOM.integers(0, 3, (4, 4, 6)).astype(np.int32)
    outputs = RANDOM.normal(size=(4, 4, 6, 3)).astype(np.float32)
    metric.update_state(y, outputs, sample_weight=tf.constant([1.0, 1, 0, 0]))
    expected = (outputs.argmax(-1) == y)[:2].mean()
    assert float(metric.result()) == pytest.approx(expected)


class Column:
    """Training examples with one column."""

    def __init__(self, values):
        self._values = values

    def column(self, name):
        return self._values


def test_numbers_are_scaled_within_the_network_only():
    values = RANDOM.normal(5000, 300, (50, 2)).astype(np.float32)
    source = ArraySource({"target": values})
    target = number(source.info)
    target = NumberTarget({**target.metadata, **target.learn(Column(values))})
    features = keras.Input((4,))
    model = keras.Model(features, target.head(features))
    weights = model.get_weights()
    model.set_weights([np.zeros_like(weight) for weight in weights])
    outputs = model(np.ones((50, 4), np.float32))
    np.testing.assert_allclose(outputs[0], values.mean(axis=0), rtol=1e-5)
    losses = target.loss()(target.y({"target": tf.constant(values)}), outputs)
    assert float(tf.reduce_mean(losses)) == pytest.approx(1, rel=1e-3)
    predictions = target.predict(outputs, {})
    np.testing.assert_allclose(predictions["prediction"], outputs)
    own = NumberTarget({**target.metadata, "raw": True})
    assert own.head(features).shape == (None, 2)
    assert float(own.loss()(values[:1], values[:1] + 3)[0]) == pytest.approx(
        9, rel=1e-3
    )


@pytest.mark.parametrize(
    ("make", "field", "values", "message"),
    [
        (labels, "labels", np.zeros((3, 2), np.float32), "zeros and ones"),
        (labels, "labels", np.zeros((3, 2), np.uint8), "2 labels.*3 names"),
        (number, "target", np.zeros((3, 2, 2), np.float32), "one number"),
        (mask, "mask", np.zeros((3, 4), np.uint8), "mask .*whole numbers"),
    ],
)
def test_a_field_of_another_form_is_one_line(make, field, values, message):
    info: Info = ArraySource({field: values}, class_names=tuple(NAMES)).info
    with pytest.raises(UsageError, match=message) as caught:
        make(info)
    assert "\n" not in str(caught.value)


def test_each_of_several_numbers_is_measured():
    truth = RANDOM.normal(size=(300, 2)).astype(np.float32)
    outputs = (truth + RANDOM.normal(0, [0.1, 2.0], (300, 2))).astype(np.float32)
    target = NumberTarget({"target_shape": [2]})
    loss = np.ones(300, np.float32)
    found, table = measure(target, outputs, {"target": truth}, loss)
    for index in range(2):
        expected = reference.r2_score(truth[:, index], outputs[:, index])
        assert found["per_number"][str(index)]["r2"] == pytest.approx(
            expected, rel=1e-4
        )
    expected = reference.r2_score(truth, outputs)
    assert found["r2"] == pytest.approx(expected, rel=1e-4)
    assert table.keys() == {
        *(f"{s}_{n}" for s in ("truth", "prediction") for n in (0, 1)),
        "loss",
    }
    lines = report_of(target).summary(found, "test")
    assert lines[0].split() == ["number", "rmse", "mae", "r2"]
    assert lines[-1].endswith("number 1 is predicted worse than by its mean")
    assert evaluation_of(target).no_better_than(found) == ""
    (figure,) = report_of(target).pictures(found, table).values()
    assert len(figure.axes) == 2


def files_of_masks(*masks):
    """Raw training examples with masks as files."""

    class Files:
        def batches(self):
            for values in masks:
                yield {"mask": np.array([png(values).numpy()], object)}

    return Files()


def new_mask(*names, values=()):
    return mask(
        Info(
            {"train": 2},
            {"mask": tf.TensorSpec((), tf.string)},
            names or None,
            class_values=values,
            image_shape=(2, 3, 1),
        )
    )


@pytest.mark.parametrize(
    ("values", "names", "expected"),
    [
        # Small numbers are those of the classes, and 255 among them is none.
        ([0, 1], (), {"class_names": ["0", "1"]}),
        ([0, 1, 255], (), {"class_names": ["0", "1"], "has_ignored": True}),
        ([0, 1, 255], ("a", "b", "c"), {"has_ignored": True}),
        ([0, 2], (), {"class_names": ["0", "1", "2"]}),
        ([0, 15, 255], tuple("abcdefghijklmnopqrstu"), {"has_ignored": True}),
        # Otherwise, each value is a class.
        ([0, 255], (), {"class_values": [0, 255], "class_names": ["0", "255"]}),
        ([0, 255], ("sky", "tree"), {"class_values": [0, 255]}),
        ([1, 2, 3], ("pet", "not", "edge"), {"class_values": [1, 2, 3]}),
        ([0, 128, 255], ("a", "b", "c"), {"class_values": [0, 128, 255]}),
        ([0, 200], (), {"class_values": [0, 200], "class_names": ["0", "200"]}),
    ],
)
def test_the_values_of_masks_say_what_are_classes(values, names, expected):
    # The first mask has no object.
    masks = [np.full((2, 3), values[0], np.uint8), np.resize(values, (2, 3))]
    masks[1] = masks[1].astype(np.uint8)
    assert new_mask(*names).learn(files_of_masks(*masks)) == expected


def test_colors_are_classes_in_their_order():
    colors = np.array([[[0, 0, 0], [128, 0, 64], [255, 255, 255]]], np.uint8)
    target = new_mask()
    learned = target.learn(files_of_masks(colors))
    assert learned["class_names"] == ["#000000", "#ffffff", "#800040"]
    decoded = MaskTarget({**target.metadata, "mask_shape": [1, 3], **learned}).decode(
        {"mask": png(colors)}, None
    )
    np.testing.assert_array_equal(decoded["mask"], [[0, 2, 1]])


def test_a_table_of_colors_needs_no_masks():
    target = new_mask("road", "sky", values=(1 << 24 | 0x800000, 0))
    assert target.learn(None) == {}
    colors = np.array([[[0, 0, 0], [128, 0, 0], [255] * 3]], np.uint8)
    decoded = MaskTarget({**target.metadata, "mask_shape": [1, 3]}).decode(
        {"mask": png(colors)}, None
    )
    np.testing.assert_array_equal(decoded["mask"], [[1, 0, IGNORED]])


@pytest.mark.parametrize(
    ("values", "names", "message"),
    [
        ([0], (), "all pixels of the masks for training are 0;"),
        ([255], (), "all pixels .* 255;"),
        ([0, 1, 7], ("a", "b"), "3 values, 0, 1, 7, for 2 names"),
        (list(range(0, 250, 3)), (), "64 values and more.*interpolation"),
    ],
)
def test_masks_that_could_mean_several_things_are_refused(values, names, message):
    values = np.resize(np.array(values, np.uint8), (10, 30))
    with pytest.raises(UsageError, match=message):
        new_mask(*names).learn(files_of_masks(values))


def test_a_value_that_is_no_class_is_refused():
    target = MaskTarget({"class_names": NAMES[:2], "mask_shape": [1, 2]})
    target = MaskTarget({**target.metadata, "class_values": [0, 255]})
    with pytest.raises(tf.errors.InvalidArgumentError, match="another value than 0, 2"):
        target.decode({"mask": png(np.array([[0, 3]], np.uint8))}, None)


def test_one_name_of_a_class_is_refused():
    with pytest.raises(UsageError, match="1 name: name the background, too"):
        new_mask("tree")
