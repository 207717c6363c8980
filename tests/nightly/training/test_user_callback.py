"""What a user's callback sees of the model and of the optimizer, and what it can
change.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_problem import CLASSES, machine, random_split, settings_of
from user_network import RAW, X, network

from pipeline.config import registry
from pipeline.data import batching
from pipeline.data.example_store import MemoryStore
from pipeline.data.splits import Split
from pipeline.training import user_callback as callback
from pipeline.training.model_builder import build


def trained(*callbacks, model=None, task=RAW, engine="model_fit", split=None, **train):
    """A built model after training with callbacks; 12 steps, 4 per epoch."""
    train = {"epochs": 3, "steps_per_execution": 1, "learning_rate": 0.01, **train}
    settings = settings_of(model={"name": model or network()}, train=train)
    split = split or random_split(32)
    batches = batching.training(split, settings.train, 0)
    built = build(task, settings, machine(), batches)
    adapted = [callback.from_object(one) for one in callbacks]
    evaluation = batching.evaluation(split, settings.train)
    registry.load("engines", engine)(built, batches, evaluation, adapted)
    return built


class Looks(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.names = [layer.name for layer in self.model.layers]
        self.kernel = self.model.get_layer("first_conv").kernel
        features = keras.Model(
            self.model.inputs, self.model.get_layer("first_conv").output
        )
        self.features = features.predict(X, verbose=0)
        self.evaluated = self.model.evaluate(X, np.zeros(32), verbose=0)

    def on_train_end(self, logs=None):
        self.predictions = self.model.predict(X, verbose=0)


@pytest.mark.parametrize("head", [None, "softmax", "sigmoid"])
def test_files_of_checkpoints_are_opened_by_keras_alone(workplace, head):
    """A model of the user's own layers, with the optimizer and its state."""
    names = ("last.h5", "last.keras", "own.weights.h5")
    savers = [
        keras.callbacks.ModelCheckpoint(name, save_freq="epoch") for name in names[:2]
    ]
    savers.append(keras.callbacks.ModelCheckpoint(names[2], save_weights_only=True))
    seen, is_binary = Looks(), head == "sigmoid"
    task, split = RAW, random_split(32)
    if is_binary:
        task = RAW.with_metadata({"class_names": ["a", "b"]})
        columns = {**split.take(np.arange(32)), "label": np.arange(32) % 2}
        split = Split(
            MemoryStore({name: tf.constant(c) for name, c in columns.items()}),
            split.rows,
        )
    own = network(head, 1 if is_binary else CLASSES)
    built = trained(
        seen,
        *savers,
        model=own,
        task=task,
        split=split,
        optimizer="adam",
        optimizer_options={},
    )
    assert seen.names[1:4] == [layer.name for layer in own.layers]
    assert seen.kernel is built.trainable_variables[0] and seen.features.shape == (
        32,
        6,
        6,
        4,
    )
    assert len(seen.names) == 4
    for name in names[:2]:
        model = keras.models.load_model(name)
        np.testing.assert_allclose(
            model.predict(X, verbose=0), seen.predictions, atol=1e-5
        )
        assert isinstance(model.optimizer, keras.optimizers.Adam)
        assert int(model.optimizer.iterations) == 12
    assert len(keras.models.load_model(names[1]).optimizer.variables) == 2 + 2 * 4
    own = network(head, 1 if is_binary else CLASSES)
    own.load_weights(names[2])
    np.testing.assert_allclose(own.predict(X, verbose=0), seen.predictions, atol=1e-5)


ENGINES = registry.names("engines")


class Rates(keras.callbacks.Callback):
    """Records the rate of each step; calls `change` with epoch and optimizer."""

    def __init__(self, change=lambda epoch, optimizer: None):
        super().__init__()
        self.change, self.rates = change, []

    def on_epoch_begin(self, epoch, logs=None):
        self.change(epoch, self.model.optimizer)

    def on_train_batch_begin(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))


def test_released_callbacks_change_the_rate_of_a_schedule_that_starts_at_zero():
    """Both engines end with the same bits."""
    weights = []
    for engine in ENGINES:
        warm_up = keras.callbacks.LearningRateScheduler(lambda epoch: 0.02 * epoch)
        # Never better by 9: it halves the rate after the second epoch.
        plateau = keras.callbacks.ReduceLROnPlateau(
            "loss", 0.5, patience=1, min_delta=9
        )
        last = Rates(lambda epoch, optimizer: optimizer.lr.value.assign(0.02 * epoch))
        options = {"schedule": "linear", "schedule_options": {"warmup": 0.5}}
        built = trained(warm_up, plateau, last, engine=engine, **options)
        np.testing.assert_allclose(last.rates, np.repeat([0, 0.02, 0.04], 4), atol=1e-8)
        assert float(built.optimizer.learning_rate) == pytest.approx(0.02)
        weights.append(built.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)
