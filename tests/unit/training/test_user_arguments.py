"""The task and the losses that a user's model and its data choose."""

import keras
import numpy as np
import pytest
from keras import layers

from pipeline.config import python_call
from pipeline.utils.errors import UsageError

X = np.random.default_rng(0).normal(size=(40, 6)).astype("float32")
KIND = np.arange(40) % 3


def network(*outputs):
    inputs = keras.Input((6,))
    return keras.Model(inputs, [output(inputs) for output in outputs])


def dense(units, activation=None, name=None):
    return layers.Dense(units, activation=activation, name=name)


def config_of(model, data, **arguments):
    request = python_call.request(None, {"model": model, "data": data, **arguments})
    return request.config


def test_outputs_without_a_loss_get_that_of_the_guides_of_keras(capsys):
    model = network(
        dense(3, "softmax", "kind"),
        dense(3, "softmax", "share"),
        dense(1, "sigmoid", "is_late"),
        dense(2, None, "place"),
    )
    y = {"kind": KIND, "share": np.eye(3)[KIND], "is_late": KIND > 1, "place": X[:, :2]}
    config = config_of(model, (X, y), loss_weights={"place": 0.1})
    losses = config.train.loss.value
    assert losses.losses == {
        "kind": "sparse_categorical_crossentropy",
        "share": "categorical_crossentropy",
        "is_late": "binary_crossentropy",
        "place": "mse",
    }
    assert losses.weights == {"place": 0.1} and config.task.name == "keras_model"
    lines = capsys.readouterr().out
    assert "mse for the output 'place', which ends in linear" in lines


def test_an_output_that_does_not_tell_needs_a_loss():
    model = network(dense(1, "tanh", "slope"), dense(3, "softmax", "kind"))
    data = (X, {"slope": X[:, 0], "kind": KIND})
    with pytest.raises(UsageError, match="no loss for the output 'slope'; pass loss="):
        config_of(model, data)
    config = config_of(model, data, loss={"slope": "mse"})
    assert [*config.train.loss.value.losses] == ["slope", "kind"]


def distance(y_true, y_pred):
    return keras.ops.abs(y_true - y_pred)


@pytest.mark.parametrize(
    ("activation", "loss", "task"),
    [
        ("softmax", None, "supervised"),
        ("softmax", distance, "supervised"),
        ("tanh", "hinge", "keras_model"),
        ("tanh", distance, "keras_model"),
        ("exponential", "binary_crossentropy", "supervised"),
        (None, "mse", "supervised"),
    ],
)
def test_a_loss_or_a_last_layer_tells_what_outputs_are(activation, loss, task, capsys):
    arguments = {} if loss is None else {"loss": loss}
    units = 3 if activation == "softmax" else 1
    model = network(dense(units, activation))
    config = config_of(model, (X, KIND > 0), **arguments)
    assert config.task.name == task
    reason = "do not tell whether the outputs are logits or probabilities"
    assert (reason in capsys.readouterr().out) == (task == "keras_model")


def test_a_section_of_the_source_is_looked_at_as_data():
    model = network(dense(1, name="price"), dense(3, "softmax", "kind"))
    source = {"name": (X, [X[:, 0], KIND])}
    config = python_call.request(None, {"model": model, "source": source}).config
    assert config.task.options["outputs"] == ("price", "kind")
    assert sorted(config.source.name.value[1]) == ["kind", "price"]
