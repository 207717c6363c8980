"""A user's losses and metrics of a step, against Keras on the user's own y."""

import functools
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_problem
from scipy import special
from toy_problem import task_of

from pipeline.config import registry
from pipeline.config.config import TrainConfig
from pipeline.data import batching
from pipeline.tasks.keras_model import TASK, USER
from pipeline.training import model_builder, user_metrics
from pipeline.training.train_step import SteppedModel
from pipeline.training.user_loss import UserLoss
from pipeline.utils.errors import UsageError

losses = keras.losses
metrics = keras.metrics
GENERATOR = np.random.default_rng(5)
COUNT = 40
LABELS = {classes: GENERATOR.integers(0, classes, COUNT) for classes in (2, 3)}
LOGITS = {
    classes: GENERATOR.normal(scale=2, size=(COUNT, classes)).astype(np.float32)
    for classes in (2, 3)
}
WEIGHT = (np.arange(COUNT) % 4 > 0).astype(np.float32)


def one_hot(classes=3):
    return np.eye(classes, dtype=np.float32)[LABELS[classes]]


def user_task(classes=3, label_shape=()):
    """The task of a user's network for arrays with labels of this shape."""
    metadata = {"raw": True, "user_model": True, "label_shape": list(label_shape)}
    task = task_of((8, 8, 1), classes).with_metadata(metadata)
    return registry.call("tasks", "keras_model", {}, task)


def probabilities():
    return special.softmax(LOGITS[3], axis=1)


def second():
    """One number for the second of two classes: its logit."""
    return LOGITS[2][:, 1:] - LOGITS[2][:, :1]


def value_of(loss, task, outputs):
    classes = task.target.output.shape[-1]
    given = {USER: tf.constant(outputs), TASK: None} if task.user_outputs else outputs
    return UserLoss(loss).of(task)(one_hot(classes), given).numpy()


def of_index(y_true, y_pred):
    return -tf.math.log(tf.gather(y_pred, tf.cast(y_true, tf.int32), batch_dims=1))


def of_column(y_true, y_pred):
    return of_index(y_true[:, 0], y_pred)


def of_one_hot(y_true, y_pred):
    return -tf.reduce_sum(y_true * tf.math.log(y_pred), axis=-1)


class OneHotLoss(losses.Loss):
    def call(self, y_true, y_pred):
        return of_one_hot(y_true, y_pred)


class Weighted(losses.SparseCategoricalCrossentropy):
    """A user's subclass of a loss of whole numbers."""


CROSSENTROPY = -special.log_softmax(LOGITS[3], axis=1)[np.arange(COUNT), LABELS[3]]
CASES = {
    "sparse class": (losses.SparseCategoricalCrossentropy(), ()),
    "sparse class of one-hot labels": (losses.SparseCategoricalCrossentropy(), (3,)),
    "its subclass": (Weighted(), ()),
    "name": ("sparse_categorical_crossentropy", (1,)),
    "class": (losses.CategoricalCrossentropy, (3,)),
    "class of whole numbers": (losses.CategoricalCrossentropy(), ()),
    "function of Keras": (losses.categorical_crossentropy, (3,)),
    "function of whole numbers": (of_index, ()),
    "function of a column": (of_column, (1,)),
    "function of one-hot labels": (of_one_hot, (3,)),
    "a user's class": (OneHotLoss(), (3,)),
    "partial": (functools.partial(losses.sparse_categorical_crossentropy), ()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loss_gets_the_labels_of_the_user_or_those_that_it_documents(case):
    loss, label_shape = CASES[case]
    result = value_of(loss, user_task(3, label_shape), probabilities())
    np.testing.assert_allclose(result, CROSSENTROPY, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "outputs"),
    [
        (losses.BinaryCrossentropy(), special.expit(second())),
        (losses.BinaryCrossentropy(from_logits=True), second()),
        ("binary_crossentropy", special.expit(second())),
        (lambda y, p: -tf.math.log(tf.abs(1 - y - p)), special.expit(second())),
    ],
)
def test_a_network_with_one_output_gets_one_label(loss, outputs):
    expected = np.logaddexp(0, second()[:, 0]) - LABELS[2] * second()[:, 0]
    result = value_of(loss, user_task(2), outputs)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        losses.CategoricalCrossentropy,
        losses.SparseCategoricalCrossentropy(),
        losses.categorical_crossentropy,
        "crossentropy",
    ],
)
def test_a_network_with_the_head_of_the_task_returns_logits(loss):
    if loss == "crossentropy":
        task = task_of((8, 8, 1), 3)
        call = registry.call("losses", loss, {}, task.metadata)
        result = call(one_hot(), LOGITS[3]).numpy()
    else:
        result = value_of(loss, task_of((8, 8, 1), 3), LOGITS[3])
    np.testing.assert_allclose(result, CROSSENTROPY, rtol=1e-4, atol=1e-6)


def test_a_binary_loss_of_the_heads_classes_gets_probabilities():
    result = value_of(losses.BinaryCrossentropy(), task_of((8, 8, 1), 3), LOGITS[3])
    expected = losses.binary_crossentropy(one_hot(), probabilities())
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def total(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_pred))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (total, "total returns one number for the batch; it must return one value per"),
        (lambda y, p: y.shapes, "does not fit: y is float32 of shape .*no attribute"),
        (3, "a loss must be a name, .*got int"),
        ("categorial", "unknown loss 'categorial'"),
        (losses.MeanSquaredError(reduction="sum"), "remove reduction"),
    ],
)
def test_a_loss_that_cannot_be_used_is_refused(loss, message):
    with pytest.raises(UsageError, match=message) as caught:
        value_of(loss, user_task(), probabilities())
    assert "\n" not in str(caught.value)


def masked(values):
    tensor = tf.constant(values)
    tensor._keras_mask = tf.constant([[True, True, False], [True, False, False]])
    return tensor


def test_masked_steps_do_not_count_in_a_loss_and_in_a_metric():
    class Steps:
        user_outputs = ("next",)
        target = SimpleNamespace(output=None)

        def user_arguments(self, y, outputs, takes):
            return y[takes.output], outputs[takes.output]

    y = {"next": np.zeros((2, 3, 1), np.float32)}
    outputs = {"next": masked([[[1.0], [2.0], [9.0]], [[3.0], [9.0], [9.0]]])}
    loss = UserLoss(losses.MeanSquaredError()).of(Steps(), "next")
    np.testing.assert_allclose(loss(y, outputs), [(1 + 4) / 2, 9])
    metric = user_metrics.create("mse", Steps(), (3, 1), output="next")
    metric.update_state(y, outputs, tf.ones(2))
    assert float(metric.result()) == pytest.approx((1 + 4 + 9) / 3)


def metric_of(metric, task, outputs, **options):
    shape = outputs.shape[1:]
    own = user_metrics.create(metric, task, shape, options)
    given = {USER: tf.constant(outputs), TASK: None} if task.user_outputs else outputs
    own.update_state(one_hot(task.target.output.shape[-1]), given, sample_weight=WEIGHT)
    return float(own.result())


def stock(metric, y, outputs):
    metric.update_state(y, outputs, sample_weight=WEIGHT)
    return float(metric.result())


def right(y_true, y_pred):
    return tf.cast(tf.argmax(y_pred, axis=-1) == tf.cast(y_true, tf.int64), tf.float32)


KINDS = [metrics.BinaryAccuracy, metrics.AUC, metrics.Precision, metrics.Hinge]
KINDS += [metrics.MeanSquaredError, metrics.BinaryCrossentropy]


@pytest.mark.parametrize("kind", [*KINDS, metrics.F1Score, metrics.CategoricalAccuracy])
def test_a_metric_of_several_classes_is_that_of_keras_with_one_hot_labels(kind):
    options = {"average": "macro"} if kind is metrics.F1Score else {}
    expected = stock(kind(**options), one_hot(), probabilities())
    for task, outputs in (
        (user_task(), probabilities()),
        (task_of((8, 8, 1), 3), LOGITS[3]),
    ):
        result = metric_of(kind, task, outputs, **options)
        assert result == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [*KINDS, metrics.Recall])
def test_a_metric_of_one_output_is_that_of_keras(kind):
    outputs = special.expit(second())
    expected = stock(kind(), LABELS[2][:, None], outputs)
    assert metric_of(kind(), user_task(2), outputs) == pytest.approx(expected, rel=1e-5)


ACCURACY = np.average(LABELS[3] == LOGITS[3].argmax(axis=1), weights=WEIGHT)
MEAN = np.average(CROSSENTROPY, weights=WEIGHT)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (metrics.SparseCategoricalAccuracy(), ACCURACY),
        (metrics.SparseCategoricalCrossentropy(), MEAN),
        (losses.CategoricalCrossentropy(), MEAN),
        (right, ACCURACY),
        (of_index, MEAN),
        (metrics.MeanMetricWrapper(right, "right"), ACCURACY),
        (metrics.sparse_categorical_accuracy, ACCURACY),
    ],
)
def test_a_metric_has_the_value_of_its_formula(metric, expected):
    result = metric_of(metric, user_task(), probabilities())
    assert result == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "metric",
    [
        metrics.SparseCategoricalCrossentropy(from_logits=True),
        functools.partial(losses.sparse_categorical_crossentropy, from_logits=True),
    ],
)
def test_a_metric_of_logits_gets_the_logits_of_the_head(metric):
    result = metric_of(metric, task_of((8, 8, 1), 3), LOGITS[3])
    assert result == pytest.approx(MEAN, rel=1e-5)


class Deaf(metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(keras.ops.max(y_pred, axis=-1))


class NeedsMasks(metrics.Metric):
    def update_state(self, y_true, y_pred, sample_weight=None):
        raise KeyError("masks")

    def result(self):
        return 0.0


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (total, "total .*one number.*one value per example"),
        (metrics.Accuracy(), "use metrics=.*accuracy"),
        (NeedsMasks(), "needs_masks does not suit the task: .*masks"),
        (Deaf(name="deaf"), "deaf ignores sample_weight"),
        (3, "a metric must be a name, .*got int"),
    ],
)
def test_a_metric_that_cannot_be_used_is_refused(metric, message):
    with pytest.raises(UsageError, match=message):
        own = user_metrics.create(metric, user_task(), (3,))
        outputs = {USER: tf.constant(probabilities()), TASK: tf.constant(LOGITS[3])}
        user_metrics.require_weights(own, one_hot(), outputs)


@pytest.mark.parametrize(
    "metric", [metrics.CategoricalAccuracy(), metrics.F1Score(average="macro")]
)
def test_a_metric_that_compares_classes_needs_several_outputs(metric):
    with pytest.raises(UsageError, match="compares classes, .*has one output; use"):
        user_metrics.create(metric, user_task(2), (1,))


@pytest.mark.parametrize("kind", ["binary", "mean"])
def test_iou_counts_pixels_of_examples_that_are_no_padding(kind):
    metadata = {"class_names": ["a", "b"], "image_shape": [4, 4, 3], "target": "mask"}
    metadata |= {"mask_shape": [4, 4], "input": "image", "user_model": True}
    task = registry.call("tasks", "supervised", {}, metadata)
    task = registry.call("tasks", "keras_model", {}, task)
    y = GENERATOR.integers(0, 2, (6, 4, 4)).astype(np.int32)
    outputs = GENERATOR.random((6, 4, 4, 1)).astype(np.float32)
    metric = metrics.BinaryIoU([1], 0.5) if kind == "binary" else metrics.BinaryIoU()
    own = user_metrics.create(metric, task, (4, 4, 1))
    weight = np.float32([1, 1, 1, 1, 0, 0])
    own.update_state(y, {USER: tf.constant(outputs), TASK: None}, weight)
    expected = type(metric).from_config(metric.get_config())
    expected.update_state(y[:4], outputs[:4])
    assert float(own.result()) == pytest.approx(float(expected.result()))


def built(words):
    task = task_of((8, 8, 1), 3)
    inputs = keras.Input((8, 8, 1))
    outputs = keras.layers.Dense(3)(keras.layers.Flatten()(inputs))
    model = SteppedModel(inputs, outputs)
    model.task = task
    return model_builder._metrics(model, TrainConfig(metrics=words))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["accuracy"], []),  # reported in any case
        (["acc"], ["acc"]),
        (["AUC", "auc"], ["AUC", "auc"]),
        (["mse", "bce"], ["mse", "bce"]),
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
    assert [metric.name for metric in built(words)] == names


def test_accuracy_of_numbers_is_refused():
    for word in ("accuracy", "acc"):
        with pytest.raises(UsageError, match=f"{word} is for classification only"):
            registry.load("metrics", word)({"feature_names": ["x"]})


def test_a_regression_gets_its_numbers():
    task = registry.load("tasks", "regression")({"feature_names": ["x"]})
    y, outputs = GENERATOR.normal(size=(2, 30, 1)).astype(np.float32)

    def absolute(y_true, y_pred):
        return keras.ops.abs(y_true - y_pred)

    result = UserLoss(absolute).of(task)(y, outputs)
    np.testing.assert_allclose(result, np.abs(y - outputs)[:, 0], rtol=1e-6)
    metric = user_metrics.create(absolute, task, (1,))
    metric.update_state(y, outputs)
    assert float(metric.result()) == pytest.approx(np.abs(y - outputs).mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "is_refused"),
    [
        (losses.SparseCategoricalCrossentropy(), True),
        (of_index, True),
        (losses.CategoricalCrossentropy(), False),
        (None, False),
    ],
)
def test_mixed_examples_need_a_loss_of_one_hot_labels(loss, is_refused):
    options = TrainConfig() if loss is None else TrainConfig(loss=loss)
    if not is_refused:
        model_builder._require_shares(user_task(), options)
        return
    with pytest.raises(UsageError, match="takes one class for each example, but mixup"):
        model_builder._require_shares(user_task(), options)
    model_builder._require_shares(user_task(3, (3,)), TrainConfig(loss=of_one_hot))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": [Deaf(name="deaf")]}, "deaf ignores sample_weight"),
        ({"metrics": [total]}, "total returns one number"),
        ({"loss": total}, "total returns one number"),
    ],
)
def test_code_of_the_user_is_tried_with_a_model_of_the_package(options, message):
    settings = toy_problem.settings_of(train=options)
    batches = batching.training(toy_problem.random_split(), settings.train, 0)
    with pytest.raises(UsageError, match=message):
        model_builder.build(toy_problem.TASK, settings, toy_problem.machine(), batches)


def test_words_for_the_accuracy_of_the_task_are_not_repeated():
    assert built(["Accuracy", "accuracy"]) == []
