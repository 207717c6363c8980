"""What a user's callback sees of the model and of the optimizer, and what it can
change.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_problem import CLASSES, machine, random_split, settings_of
from user_network import RAW, X, network

from pipeline.data import batching
from pipeline.training import user_callback as callback
from pipeline.training.model_builder import build
from pipeline.training.optim.learning_rate import AdjustableRate
from pipeline.utils.errors import UsageError

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.flatten = keras.layers.Flatten()
        self.last = keras.layers.Dense(CLASSES, name="inner_dense")

    def call(self, inputs):
        return self.last(self.flatten(inputs)) / 255


def test_the_optimizer_is_one_of_keras_and_shows_the_state_of_the_run():
    rate = AdjustableRate(0.25)
    optimizer = keras.optimizers.Nadam(rate, beta_1=0.8, name="mine")
    variable = keras.Variable([1.0, 2.0])
    optimizer.build([variable])
    view = callback._view_of(optimizer, rate)
    assert isinstance(view, keras.optimizers.Nadam) and view.name == "mine"
    optimizer.apply([tf.constant([1.0, 1.0])], [variable])
    assert int(view.iterations) == 1
    plain = keras.optimizers.Nadam(0.25, beta_1=0.8, name="mine")
    plain.build([variable])
    assert view.get_config() == plain.get_config()
    assert [v.shape for v in view.variables] == [v.shape for v in plain.variables]
    for read in (float, np.asarray, keras.ops.convert_to_numpy, tf.convert_to_tensor):
        assert float(read(view.learning_rate)) == 0.25
    assert view.learning_rate.numpy() == view.learning_rate.value.numpy() == 0.25
    assert isinstance(view.learning_rate, keras.Variable)
    view.learning_rate.assign(0.0)
    assert float(optimizer.learning_rate) == 0
    view.learning_rate.assign_add(0.5)
    assert float(optimizer.learning_rate) == 0.5
    view.learning_rate = np.float32(0.125)
    assert float(optimizer.learning_rate) == 0.125
    view.lr = 0.75
    assert float(optimizer.learning_rate) == 0.75
    rate.factor.assign(0.5)  # as after a roll-back
    view.learning_rate = 0.1
    assert float(view.lr) == float(optimizer.learning_rate) == pytest.approx(0.1)
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 9)
    for name, value, message in (
        ("learning_rate", schedule, "to a schedule"),
        ("learning_rate", -0.1, "must be 0 or more"),
        ("learning_rate", float("nan"), "must be 0 or more"),
        ("beta_1", 0.5, "cannot set beta_1"),
    ):
        with pytest.raises(UsageError, match=message):
            setattr(view, name, value)
    assert optimizer.beta_1 == 0.8


class Asks(keras.callbacks.Callback):
    def __init__(self, question):
        super().__init__()
        self.question = question

    def on_epoch_end(self, epoch, logs=None):
        self.question(self.model)


QUESTIONS = {
    "layer": (lambda model: model.get_layer("first_con"), "did you mean 'first_conv'"),
    "attribute": (lambda model: model.encoder, "uses self.model.encoder, which"),
    "optimizer": (
        lambda model: model.optimizer.loss_scale,
        "uses self.model.optimizer.loss_scale",
    ),
    "fit": (lambda model: model.fit(X, X), "must not train the model"),
    "compile": (
        lambda model: model.compile("sgd"),
        "pass optimizer, loss and metrics to fit",
    ),
    "momentum": (
        lambda model: setattr(model.optimizer, "momentum", 0),
        "cannot set momentum",
    ),
}


@pytest.fixture(scope="module")
def models():
    """A built `Sequential` model, and a subclassed one."""
    split = random_split(8)
    models = []
    for own in (network(), Subclassed()):
        settings = settings_of(model={"name": own}, train={"loss": LOSS})
        models.append(
            build(RAW, settings, machine(), batching.training(split, settings.train, 0))
        )
    return models


def ask(model, question):
    """Calls a callback that asks the question once."""
    asks = callback.from_object(Asks(question))
    asks.set_model(model)
    asks.on_epoch_end(0, {})


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_a_callback_cannot_do_is_one_line(models, question):
    function, message = QUESTIONS[question]
    with pytest.raises(UsageError, match=message) as caught:
        ask(models[0], function)
    assert "\n" not in str(caught.value)


def test_what_is_assigned_to_the_tensorflow_variable_is_passed_on(models):
    ask(models[0], lambda model: model.optimizer.learning_rate.value.assign(0.5))
    assert float(models[0].optimizer.learning_rate) == 0.5


def test_an_error_in_a_callback_itself_stays_as_it_is(models):
    with pytest.raises(AttributeError, match="'int' object") as caught:
        ask(models[0], lambda model: (3).encoder)
    assert "raised by the callback Asks" in caught.value.__notes__[0]


def test_layers_inside_a_subclassed_model_are_found(models):
    layers = []
    ask(models[1], lambda model: layers.append(model.get_layer("inner_dense")))
    assert layers[0].kernel is models[1].trainable_variables[0]


@pytest.mark.parametrize(
    ("metric", "mode"),
    [("val_f1_score", "max"), ("mean_squared_error", "min"), ("val_accuracy", "max")],
)
def test_a_monitored_metric_is_better_in_its_own_direction(
    models, monkeypatch, metric, mode
):
    """Keras infers that from the metrics that the model was compiled with."""
    own = [keras.metrics.F1Score(), keras.metrics.MeanSquaredError()]
    monkeypatch.setattr(models[0].step, "metrics", [*models[0].step.metrics, *own])
    for kind in (keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau):
        monitor = kind(metric)
        callback.from_object(monitor).set_model(models[0])
        assert monitor.mode == mode


@pytest.mark.parametrize(
    ("monitor", "message"),
    [
        ("val_loss", r'train={"patience": 3}, .* weights of the lowest val_loss'),
        ("val_accuracy", '"patience": 3, "evaluate_every": 1}, .*validation metric'),
    ],
)
def test_the_best_weights_are_an_option_of_the_run(monitor, message):
    stopping = keras.callbacks.EarlyStopping(
        monitor, patience=3, restore_best_weights=True
    )
    with pytest.raises(UsageError, match=message):
        callback.from_object(stopping)


def test_the_learning_rate_is_printed_as_it_is():
    rate = AdjustableRate(0.25)
    optimizer = keras.optimizers.SGD(rate)
    assert str(callback.Rate(optimizer, rate)) == (
        "<Variable name=learning_rate, value=0.25>"
    )
