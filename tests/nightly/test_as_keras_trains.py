"""Runs of a user's model against `keras.Model.fit` on the same examples."""

import keras
import numpy as np
import pytest
from keras import layers
from keras_model_cases import CASES, COUNT, arguments_of, rows

from pipeline.fit import fit

pytestmark = pytest.mark.long
QUICK = {"log": {"tensorboard": False}, "runtime": {"precision": "float32"}}
WHOLE = {"data": {"validation": 0.0, "test": 0.0}, "export": {"enabled": False}}
X, Y = rows()
KIND = Y["kind"]
losses = keras.losses


def network(units, activation=None):
    keras.utils.set_random_seed(0)
    hidden = layers.Dense(16, activation="relu")
    stack = [keras.Input((8,)), hidden, layers.Dense(units, activation=activation)]
    return keras.Sequential(stack)


def one_hot():
    return np.eye(3, dtype=np.float32)[KIND]


def mean_squares(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


def focal(y_true, y_pred):
    labels = keras.ops.one_hot(keras.ops.cast(y_true, "int32"), 3)
    share = keras.ops.sum(labels * y_pred, axis=-1)
    return -((1 - share) ** 2) * keras.ops.log(share)


HEADS = {
    "softmax": (
        lambda: network(3, "softmax"),
        KIND,
        "sparse_categorical_crossentropy",
        ["accuracy"],
    ),
    "softmax, one-hot": (
        lambda: network(3, "softmax"),
        one_hot(),
        losses.CategoricalCrossentropy(label_smoothing=0.1),
        ["accuracy", "categorical_accuracy", keras.metrics.AUC(name="area")],
    ),
    "logits": (
        lambda: network(3),
        KIND,
        losses.SparseCategoricalCrossentropy(from_logits=True),
        ["sparse_categorical_accuracy"],
    ),
    "a column": (
        lambda: network(3, "softmax"),
        KIND[:, None],
        losses.SparseCategoricalCrossentropy(),
        ["accuracy"],
    ),
    "one sigmoid": (
        lambda: network(1, "sigmoid"),
        (KIND > 0).astype("int64"),
        "binary_crossentropy",
        ["accuracy", keras.metrics.Precision(name="precision_of_1")],
    ),
    "one logit": (
        lambda: network(1),
        (KIND > 0).astype("int64"),
        losses.BinaryFocalCrossentropy(from_logits=True),
        [],
    ),
    "a function of labels": (lambda: network(3, "softmax"), KIND, focal, []),
    "a function of one-hot labels": (
        lambda: network(3, "softmax"),
        one_hot(),
        mean_squares,
        ["mse"],
    ),
    "several labels": (
        lambda: network(3, "sigmoid"),
        (X[:, :3] > 0).astype("int64"),
        "binary_crossentropy",
        ["binary_accuracy"],
    ),
    "numbers": (lambda: network(2), X[:, :2], "huber", ["mae"]),
    "ratings": (lambda: network(1), KIND, "mse", ["mae"]),
    "0 and 1 as numbers": (lambda: network(1), KIND > 0, "mse", ["accuracy"]),
    "classes without examples": (
        lambda: network(6, "softmax"),
        KIND * 2,
        "sparse_categorical_crossentropy",
        ["accuracy"],
    ),
}


def decayed(kind, **options):
    def build():
        optimizer = kind(0.01, weight_decay=0.5, **options)
        optimizer.exclude_from_weight_decay(var_names=["gamma"])
        return optimizer

    return build


OPTIMIZERS = {
    "a name": lambda: "sgd",
    "a class": lambda: keras.optimizers.Adagrad,
    "AdamW": decayed(keras.optimizers.AdamW),
    "SGD": decayed(keras.optimizers.SGD, momentum=0.9),
}


def curves(model, data, loss, metrics, loss_weights=None):
    """The history of stock Keras: SGD, 3 epochs, in the order of the examples."""
    model.compile(
        keras.optimizers.SGD(0.05), loss, loss_weights=loss_weights, metrics=metrics
    )
    x, y = data
    history = model.fit(x, y, epochs=3, batch_size=16, shuffle=False, verbose=0)
    return history.history


def ours(arguments, engine):
    if arguments.get("optimizer") is None:
        arguments["optimizer"] = keras.optimizers.SGD(0.05)
    train = {"engine": engine, "batch_size": 16, "shuffle": False}
    arguments["source"] = {"name": arguments.pop("data")}
    return fit(**arguments, epochs=3, train=train, **QUICK, **WHOLE).history


def require_equal(history, expected):
    assert expected["loss"][0] != pytest.approx(expected["loss"][-1])
    for name, values in expected.items():
        assert history[name] == pytest.approx(values, rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("engine", ["model_fit", "gradient_tape"])
@pytest.mark.parametrize("head", HEADS)
def test_classes_labels_and_numbers_have_the_curves_of_keras(workplace, head, engine):
    build, y, loss, metrics = HEADS[head]
    model = build()
    arguments = {"model": model, "data": (X, y), "loss": loss, "metrics": metrics}
    if head == "several labels":
        arguments["task"] = {"target": "labels"}
    history = ours(arguments, engine)
    stock = build()
    fresh = [
        type(m).from_config(m.get_config()) if not isinstance(m, str) else m
        for m in metrics
    ]
    require_equal(history, curves(stock, (X, y), loss, fresh))
    for weight, expected in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_model_of_any_kind_has_the_curves_of_keras(workplace, case):
    arguments = arguments_of(case)
    stock = arguments_of(case)
    model = stock["model"]
    if model.compiled:
        config = model._compile_config.config
        stock |= {name: config[name] for name in ("loss", "loss_weights", "metrics")}
    x, y = stock["data"]
    if case.__name__ == "texts":
        x = keras.ops.convert_to_tensor(x)
    if case.__name__ in ("two_outputs", "compiled"):
        y = [y["price"], y["kind"]]
    if case.__name__ == "image_and_features":
        x = [x["photo"], x["row"]]
    expected = curves(
        model,
        (x, y),
        stock["loss"],
        stock.get("metrics"),
        stock.get("loss_weights"),
    )
    arguments["optimizer"] = keras.optimizers.SGD(0.05)
    assert COUNT % 16 == 0
    require_equal(ours(arguments, "model_fit"), expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_changes_weights_as_in_keras(workplace, name):
    """Its weight decay also changes biases, unless the user excludes them."""

    def build():
        model = network(3, "softmax")
        stack = [keras.Input((8,)), layers.BatchNormalization(), *model.layers]
        for layer in model.layers:
            layer.bias.assign(keras.ops.ones_like(layer.bias))
        return keras.Sequential(stack)

    model, stock = build(), build()
    loss = "sparse_categorical_crossentropy"
    arguments = {"model": model, "data": (X, KIND), "loss": loss}
    ours({**arguments, "optimizer": OPTIMIZERS[name]()}, "model_fit")
    optimizer = OPTIMIZERS[name]()
    stock.compile(optimizer() if isinstance(optimizer, type) else optimizer, loss)
    stock.fit(X, KIND, epochs=3, batch_size=16, shuffle=False, verbose=0)
    for weight, expected in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-5)
