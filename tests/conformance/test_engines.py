"""Every engine takes the requested steps and reports them to callbacks and history."""

import keras
import numpy as np
from registered_functions import load
from toy_problem import TASK, machine, random_split, settings_of

from pipeline.config import registry
from pipeline.data import batching
from pipeline.training.model_builder import build

ENGINES = registry.names("engines")


class Calls(keras.callbacks.Callback):
    """Notes at what points it is called."""

    def __init__(self):
        super().__init__()
        self.points = []

    def on_train_begin(self, logs=None):
        self.points.append("train")

    def on_epoch_begin(self, epoch, logs=None):
        self.points.append(("epoch", epoch))

    def on_train_batch_end(self, batch, logs=None):
        self.points.append((batch, logs))  # the metrics so far

    def on_epoch_end(self, epoch, logs=None):
        self.points.append(("end", epoch, *sorted(logs)))

    def on_train_end(self, logs=None):
        self.points.append("end")


def trained(engine, **train):
    """(model, history, points at which a callback was called)."""
    settings = settings_of(train=train)
    split, calls = random_split(37), Calls()
    batches = batching.training(split, settings.train, 0)
    model = build(TASK, settings, machine(), batches)
    validation = batching.evaluation(split, settings.train)
    history = load("engines", engine)(model, batches, validation, [calls])
    return model, history, calls.points


def test_all_train_the_same_weights_and_call_callbacks_at_the_same_points():
    (model, history, points), *others = [trained(name, epochs=2) for name in ENGINES]
    assert int(model.optimizer.iterations) == 8
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert all(
        len(values) == 2 and np.isfinite(values).all() for values in history.values()
    )
    ends = [("end", epoch, *sorted(history)) for epoch in (0, 1)]
    assert points[:2] == ["train", ("epoch", 0)] and points[-2:] == [ends[1], "end"]
    assert ends[0] in points
    for other in others:
        assert other[1:] == (history, points)
        for one, two in zip(model.get_weights(), other[0].get_weights(), strict=True):
            np.testing.assert_array_equal(one, two)
