"""The task and the losses that a user's model and its data choose."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from pipeline.config import python_call
from pipeline.training import user_model
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
    # As in Keras, an output without a loss is not trained.
    assert [*config.train.loss.value.losses] == ["slope"]


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


@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [("sgd", 0.01), (keras.optimizers.SGD, 0.01), ("adam", 0.001), ("Lion", 0.001)],
)
def test_an_optimizer_by_name_or_class_has_the_learning_rate_of_keras(optimizer, rate):
    arguments = {"loss": "mse", "optimizer": optimizer}
    config = config_of(network(dense(1)), (X, X[:, 0]), **arguments)
    assert config.train.learning_rate == rate
    config = config_of(network(dense(1)), (X, X[:, 0]), **arguments, learning_rate=0.5)
    assert config.train.learning_rate == 0.5


@pytest.mark.parametrize("y", [KIND, KIND > 0, (KIND > 0).astype("float32")])
@pytest.mark.parametrize("loss", ["mse", keras.losses.Huber(), "MAE"])
def test_a_loss_of_numbers_and_a_linear_layer_predict_numbers(y, loss):
    config = config_of(network(dense(1)), (X, y), loss=loss)
    assert config.task.target == "number"
    named = config_of(
        network(dense(1)), (X, KIND > 0), loss=loss, class_names=["a", "b"]
    )
    assert named.task.target is None


@pytest.mark.parametrize("y", [KIND * 2, KIND + 1, KIND[:, None]])
def test_a_softmax_has_a_class_for_each_of_its_outputs(y):
    loss = "sparse_categorical_crossentropy"
    config = config_of(network(dense(6, "softmax")), (X, y), loss=loss)
    assert config.source.options["class_names"] == [*"012345"]
    config = config_of(network(dense(3, "softmax")), (X, KIND), loss=loss)
    assert "class_names" not in config.source.options


def test_a_dataset_has_a_batch_size():
    examples = tf.data.Dataset.from_tensor_slices((X, KIND))
    model = network(dense(3, "softmax"))
    assert config_of(model, examples.batch(8)).train.batch_size == 8
    assert config_of(model, examples.batch(8), batch_size=5).train.batch_size == 5
    assert config_of(model, examples).train.batch_size == 32


def test_the_forms_of_keras_for_one_output():
    model = network(dense(3, "softmax", "kind"))
    for metrics in ({"kind": "accuracy"}, [["accuracy"]], "accuracy", ["accuracy"]):
        config = config_of(model, (X, KIND), metrics=metrics, loss_weights=[1.0])
        assert [*config.train.metrics] == ["accuracy"]
        assert config.task.name == "supervised"
    weighted = config_of(model, (X, KIND), loss="ce", loss_weights=[0.5])
    assert weighted.train.loss.value.weights == {"kind": 0.5}
    with pytest.raises(UsageError, match="did you mean metrics="):
        config_of(model, (X, KIND), loss="ce", loss_weights=["accuracy"])


def test_one_loss_is_that_of_each_output():
    model = network(dense(1, None, "a"), dense(1, None, "b"))
    config = config_of(model, (X, [X[:, 0], X[:, 1]]), loss="mse")
    assert config.train.loss.value.losses == {"a": "mse", "b": "mse"}
    config = config_of(model, (X, [X[:, 0], X[:, 1]]), loss=["mse", None])
    assert config.train.loss.value.losses == {"a": "mse"}


def test_fractions_of_classes_are_compared_as_they_are():
    soft = np.random.default_rng(0).dirichlet([1, 1, 1], 40)
    model = network(dense(3, "softmax"))
    config = config_of(model, (X, soft), loss="kl_divergence")
    assert config.task.name == "keras_model"


def test_a_loss_that_contradicts_one_of_several_outputs_is_refused():
    model = network(dense(3, None, "kind"), dense(1, None, "place"))
    loss = {"kind": "sparse_categorical_crossentropy", "place": "mse"}
    y = {"kind": KIND, "place": X[:, 0]}
    with pytest.raises(UsageError, match="the output 'kind': the loss expects prob"):
        config_of(model, (X, y), loss=loss)


def test_inputs_without_names_are_in_their_order_also_in_a_later_model():
    for _ in range(2):
        inputs = [keras.Input((6,)), keras.Input((2,))]
        output = dense(1)(layers.Concatenate()(inputs))
        model = keras.Model(inputs, output)
        config = config_of(model, ([X, X[:, :2]], X[:, 0]), loss="mse")
        x, _ = config.source.name.value
        assert [*x] == ["keras_tensor", "keras_tensor_1"]
        assert user_model.input_names(model) == [*x]
