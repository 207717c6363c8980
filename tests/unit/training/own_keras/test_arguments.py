"""What users' losses and metrics get, against stock Keras on the user's own labels and
answers.
"""

import functools
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from pipeline.config import registry
from pipeline.config.config import TrainConfig
from pipeline.training import model_builder
from pipeline.training.own_keras import loss as own_loss
from pipeline.training.own_keras import metric as own_metric
from pipeline.utils.errors import UsageError

GENERATOR = np.random.default_rng(5)
COUNT = 40
LABELS = {classes: GENERATOR.integers(0, classes, COUNT) for classes in (2, 3)}
LOGITS = {
    classes: GENERATOR.normal(scale=2, size=(COUNT, classes)).astype(np.float32)
    for classes in (2, 3)
}
WEIGHT = (np.arange(COUNT) % 4 > 0).astype(np.float32)


def one_hot(classes):
    return np.eye(classes, dtype=np.float32)[LABELS[classes]]


def metadata(classes, output_kind="none"):
    return {"class_names": [str(n) for n in range(classes)], "output_kind": output_kind}


def probabilities(classes):
    return special.softmax(LOGITS[classes], axis=1)


def second(classes=2):
    """The logit of the second of two classes, as a network with one output has it."""
    return LOGITS[classes][:, 1:] - LOGITS[classes][:, :1]


def value_of(metric, y, outputs):
    metric.update_state(y, outputs, sample_weight=WEIGHT)
    return float(metric.result())


def ours(metric, classes, output_kind="none", **options):
    own = own_metric.from_object(metric, metadata(classes, output_kind), **options)
    return value_of(own, one_hot(classes), LOGITS[classes])


class OneHotRecall(keras.metrics.Metric):
    """A user's metric, which works with one-hot labels only."""

    def __init__(self, name="one_hot_recall", **options):
        super().__init__(name=name, **options)
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        hits = keras.ops.sum(y_true * y_pred, axis=-1)
        self.total.assign_add(keras.ops.sum(hits * sample_weight))

    def result(self):
        return self.total


class WholeNumbers(keras.metrics.SparseCategoricalAccuracy):
    """A user's subclass without `Sparse` in its name."""


def right(y_true, y_pred):
    """A user's function of labels as whole numbers."""
    return tf.cast(tf.equal(y_true, tf.argmax(y_pred, axis=-1)), tf.float32)


def right_of_one_hot(y_true, y_pred):
    """A user's function of one-hot labels: with whole numbers, it runs and is wrong."""
    return tf.cast(tf.argmax(y_true, axis=-1) == tf.argmax(y_pred, axis=-1), tf.float32)


@pytest.mark.parametrize("classes", [2, 3, 6, 7, 8, 10])
@pytest.mark.parametrize(
    "function", [right_of_one_hot, keras.metrics.categorical_accuracy, right]
)
def test_functions_get_the_labels_they_need_for_any_number_of_classes(
    function, classes
):
    labels = GENERATOR.integers(0, classes, COUNT)
    outputs = GENERATOR.normal(size=(COUNT, classes)).astype(np.float32)
    own = own_metric.from_object(function, metadata(classes))
    own.update_state(np.eye(classes, dtype=np.float32)[labels], outputs)
    assert float(own.result()) == pytest.approx(
        (labels == outputs.argmax(axis=1)).mean()
    )


def brier(y_true, y_pred):
    return keras.ops.square(y_true - y_pred)  # one number per class


ACCURACY = np.average(LABELS[3] == LOGITS[3].argmax(axis=1), weights=WEIGHT)
CROSSENTROPY = np.average(
    -special.log_softmax(LOGITS[3], axis=1)[np.arange(COUNT), LABELS[3]], weights=WEIGHT
)
BRIER = np.average(((one_hot(3) - probabilities(3)) ** 2).mean(axis=1), weights=WEIGHT)
metrics = keras.metrics
VALUES = {
    "class": (metrics.CategoricalAccuracy(), ACCURACY),
    "sparse class": (metrics.SparseCategoricalAccuracy(), ACCURACY),
    "subclass": (WholeNumbers(), ACCURACY),
    "from_logits": (metrics.CategoricalCrossentropy(from_logits=True), CROSSENTROPY),
    "sparse from_logits": (
        metrics.SparseCategoricalCrossentropy(from_logits=True),
        CROSSENTROPY,
    ),
    "of probabilities": (metrics.SparseCategoricalCrossentropy(), CROSSENTROPY),
    "a loss": (keras.losses.CategoricalCrossentropy(from_logits=True), CROSSENTROPY),
    "a sparse loss": (keras.losses.SparseCategoricalCrossentropy(), CROSSENTROPY),
    "function of whole numbers": (right, ACCURACY),
    "function of one-hot labels": (right_of_one_hot, ACCURACY),
    "a function of Keras": (keras.losses.categorical_crossentropy, CROSSENTROPY),
    "a sparse function of Keras": (metrics.sparse_categorical_accuracy, ACCURACY),
    "a wrapped function": (metrics.MeanMetricWrapper(right_of_one_hot, "r"), ACCURACY),
    "a partial function": (
        functools.partial(
            keras.losses.sparse_categorical_crossentropy, from_logits=True
        ),
        CROSSENTROPY,
    ),
    "several numbers per example": (brier, BRIER),
    "a user's class": (
        OneHotRecall(),
        (one_hot(3) * probabilities(3)).sum(axis=1) @ WEIGHT,
    ),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_metric_of_three_classes_has_the_value_of_its_formula(case):
    metric, expected = VALUES[case]
    assert ours(metric, 3) == pytest.approx(expected, rel=1e-5)


STOCK = [
    metrics.BinaryAccuracy,
    metrics.BinaryCrossentropy,
    metrics.AUC,
    metrics.Precision,
    metrics.MeanSquaredError,
    metrics.Hinge,
]


@pytest.mark.parametrize("kind", STOCK)
def test_a_metric_of_several_classes_is_that_of_keras_with_one_hot_labels(kind):
    stock = value_of(kind(), one_hot(3), probabilities(3))
    assert ours(kind(), 3) == pytest.approx(stock, rel=1e-5)


@pytest.mark.parametrize("output_kind", ["sigmoid", "logit"])
@pytest.mark.parametrize("kind", [*STOCK, metrics.Recall])
def test_a_metric_of_one_output_is_that_of_keras(kind, output_kind):
    """Keras gets labels (n,) and one probability; not both classes, of which Precision
    differs.
    """
    y = LABELS[2][:, None].astype(np.float32)
    stock = value_of(kind(), y, special.expit(second()))
    assert ours(kind(), 2, output_kind) == pytest.approx(stock, rel=1e-5)


def test_metrics_that_compare_classes_see_both_of_one_output():
    for output_kind in ("none", "sigmoid"):
        expected = metrics.F1Score(average="macro")
        expected.update_state(one_hot(2), probabilities(2), WEIGHT)
        f1 = ours(metrics.F1Score(average="macro"), 2, output_kind)
        assert f1 == pytest.approx(float(expected.result()), rel=1e-5)
        top = ours(metrics.CategoricalAccuracy(), 2, output_kind)
        assert top == pytest.approx(
            np.average((second()[:, 0] > 0) == LABELS[2], weights=WEIGHT)
        )


def total(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_pred))


def wide(y_true, y_pred):
    return y_pred[:3, 0]


class NeedsMasks(keras.metrics.Metric):
    """A user's metric that works with neither form of labels."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        raise KeyError("masks")

    def result(self):
        return 0.0


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (total, "total .*per example.*for the whole batch"),
        (wide, r"wide .*per example.*shape \(3,\)"),
        (metrics.Accuracy(), "use metrics=.*accuracy"),
        (NeedsMasks(), "needs_masks does not suit the task: .*masks"),
        (3, "a metric must be a name, .*got int"),
    ],
)
def test_a_metric_that_cannot_be_used_is_refused(metric, message):
    with pytest.raises(UsageError, match=message):
        ours(metric, 3)


def built(options, classes=3, output_kind="none"):
    class Problem:
        metadata = metadata(classes)
        output = None
        own_outputs = ()

        def metrics(self):
            return [keras.metrics.CategoricalAccuracy(name="accuracy")]

    model = SimpleNamespace(task=Problem(), output_kind=output_kind)
    return model_builder._metrics(model, TrainConfig(metrics=options))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["accuracy"], []),  # reported in any case
        (["Accuracy", "acc"], ["acc"]),
        (["AUC", "auc"], ["AUC", "auc"]),
        (["mse", "bce"], ["mse", "bce"]),
        ([metrics.SparseCategoricalAccuracy(name="accuracy")], []),
        ([metrics.TopKCategoricalAccuracy(2, name="accuracy")], ["accuracy_1"]),
        (
            [metrics.AUC(), metrics.AUC(curve="PR"), metrics.AUC()],
            ["auc", "auc_1", "auc_2"],
        ),
        (
            [metrics.Hinge(name="loss"), metrics.Hinge(name="val_loss")],
            ["loss_1", "val_loss_2"],
        ),
        ([metrics.Hinge(name="learning_rate")], ["learning_rate_1"]),
    ],
)
def test_names_are_those_of_keras_and_replace_nothing(words, names):
    options = TrainConfig(metrics=words).metrics
    assert [metric.name for metric in built(options)] == names


def test_accuracy_of_numbers_is_refused():
    for word in ("accuracy", "acc"):
        with pytest.raises(UsageError, match=f"{word} is for classification only"):
            registry.load("metrics", word)({"feature_names": ["x"]})


losses = keras.losses


class OneHotLoss(losses.Loss):
    def call(self, y_true, y_pred):
        return -keras.ops.sum(y_true * keras.ops.log(y_pred), axis=-1)


class WholeNumbersLoss(losses.Loss):
    def call(self, y_true, y_pred):
        return losses.sparse_categorical_crossentropy(y_true, y_pred)


def gathered(y_true, y_pred):
    return -tf.math.log(tf.gather(y_pred, y_true, batch_dims=1))


def of_floats(y_true, y_pred):
    hits = tf.one_hot(tf.cast(y_true, tf.int32), 3) * (1.0 + 0 * y_true[:, None])
    return -tf.reduce_sum(hits * tf.math.log(y_pred), axis=-1)


EXACT = -special.log_softmax(LOGITS[3], axis=1)[np.arange(COUNT), LABELS[3]]
LOSSES = {
    "one-hot class": (losses.CategoricalCrossentropy(), "softmax", EXACT),
    "sparse class": (losses.SparseCategoricalCrossentropy, "none", EXACT),
    "from_logits": (
        losses.SparseCategoricalCrossentropy(from_logits=True),
        "linear",
        EXACT,
    ),
    "a user's class": (OneHotLoss(), "softmax", EXACT),
    "a user's class of whole numbers": (WholeNumbersLoss(), "softmax", EXACT),
    "function of whole numbers": (gathered, "softmax", EXACT),
    "function of floats": (of_floats, "softmax", EXACT),
    "function of Keras": (losses.categorical_crossentropy, "linear", EXACT),
    "sparse function of Keras": (
        losses.sparse_categorical_crossentropy,
        "linear",
        EXACT,
    ),
    "several numbers per example": (
        brier,
        "softmax",
        ((one_hot(3) - probabilities(3)) ** 2).mean(axis=1),
    ),
    "one sigmoid per class": (
        losses.BinaryCrossentropy(from_logits=True),
        "linear",
        np.mean(np.logaddexp(0, LOGITS[3]) - one_hot(3) * LOGITS[3], axis=1),
    ),
    "binary on probabilities": (
        losses.BinaryCrossentropy(),
        "softmax",
        losses.binary_crossentropy(one_hot(3), probabilities(3)).numpy(),
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_a_loss_has_the_value_of_its_formula(case):
    loss, output_kind, expected = LOSSES[case]
    call = own_loss.from_object(loss, metadata(3, output_kind))
    np.testing.assert_allclose(
        call(one_hot(3), LOGITS[3]), expected, rtol=1e-4, atol=1e-6
    )


def either_form(y_true, y_pred):
    """A user's loss of both forms of labels, with a mistake in that of whole numbers."""
    if len(y_true.shape) == 1:
        y_true = tf.one_hot(y_true, "three")
    return -tf.reduce_sum(y_true * tf.math.log(y_pred), axis=-1)


def test_a_note_says_which_labels_a_loss_gets(capsys):
    call = own_loss.from_object(either_form, metadata(3, "softmax"))
    np.testing.assert_allclose(call(one_hot(3), LOGITS[3]), EXACT, rtol=1e-4)
    line = capsys.readouterr().out
    start = "note       the loss either_form gets one-hot labels; with labels as whole"
    assert line.startswith(f"{start} numbers: ") and line.count("\n") == 1
    own_loss.from_object(losses.sparse_categorical_crossentropy, metadata(3))
    own_loss.from_object(OneHotLoss(), metadata(3, "softmax"))
    assert not capsys.readouterr().out, "they get the first form"


def by_hand(y_true, y_pred):
    return -(y_true * keras.ops.log(y_pred) + (1 - y_true) * keras.ops.log(1 - y_pred))


@pytest.mark.parametrize(
    ("loss", "output_kind"),
    [
        (losses.BinaryCrossentropy(), "sigmoid"),
        (losses.BinaryCrossentropy(from_logits=True), "logit"),
        (losses.binary_crossentropy, "logit"),
        (by_hand, "sigmoid"),
    ],
)
def test_a_loss_of_one_output_is_the_binary_crossentropy(loss, output_kind):
    call = own_loss.from_object(loss, metadata(2, output_kind))
    expected = np.logaddexp(0, second()[:, 0]) - LABELS[2] * second()[:, 0]
    np.testing.assert_allclose(
        call(one_hot(2), LOGITS[2]), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("loss", "output_kind", "message"),
    [
        (total, "none", "total must return one value per example"),
        (
            losses.CategoricalCrossentropy(),
            "linear",
            "returns logits; set from_logits=True",
        ),
        (
            functools.partial(losses.binary_crossentropy, from_logits=True),
            "softmax",
            r"returns probabilities \(softmax\)",
        ),
        (
            lambda y_true, y_pred: y_true.shapes,
            "none",
            "must return one value per example",
        ),
        (3, "none", "a loss must be a name"),
    ],
)
def test_a_loss_that_cannot_be_used_is_refused(loss, output_kind, message):
    with pytest.raises(UsageError, match=message):
        own_loss.from_object(loss, metadata(3, output_kind))


def test_a_regression_gets_its_numbers():
    numbers = {"feature_names": ["x"]}
    y, outputs = GENERATOR.normal(size=(2, 30, 1)).astype(np.float32)

    def absolute(y_true, y_pred):
        return keras.ops.abs(y_true - y_pred)

    call = own_loss.from_object(absolute, numbers)
    np.testing.assert_allclose(call(y, outputs), np.abs(y - outputs)[:, 0], rtol=1e-6)
    metric = own_metric.from_object(absolute, numbers)
    metric.update_state(y, outputs)
    assert float(metric.result()) == pytest.approx(np.abs(y - outputs).mean(), rel=1e-5)
