"""Early stopping, and the end of training whose loss is not finite."""

import json
import math
from types import SimpleNamespace

import pytest

from pipeline.training.callbacks.early_stopping import EarlyStopping
from pipeline.training.callbacks.terminate_on_nan import TerminateOnNaN
from pipeline.utils import files
from pipeline.utils.errors import Diverged


def callback_of(patience):
    callback = EarlyStopping(patience)
    callback.set_model(SimpleNamespace(stop_training=False))
    return callback


def improvements(callback, losses):
    """Whether each epoch is the best so far."""
    improved = []
    for epoch, loss in enumerate(losses):
        callback.on_epoch_end(epoch, {"loss": 1.0, "val_loss": loss})
        improved.append(callback.improved)
    return improved


def test_it_stops_after_patience_epochs_without_a_lower_loss():
    callback = callback_of(2)
    assert improvements(callback, [0.9, 0.5, math.nan]) == [True, True, False]
    assert not callback.is_exhausted and not callback.model.stop_training
    assert improvements(callback, [0.5]) == [False], "equal is not better"
    assert callback.is_exhausted and callback.model.stop_training
    assert (callback.best, callback.wait) == (0.5, 2)


def test_without_patience_it_never_stops():
    callback = callback_of(None)
    assert improvements(callback, [0.1, 0.2, 0.3]) == [True, False, False]
    assert not callback.is_exhausted and not callback.model.stop_training


def test_without_validation_the_last_epoch_is_the_best():
    callback = callback_of(1)
    for epoch in range(3):
        callback.on_epoch_end(epoch, {"loss": 1.0 + epoch})
        assert callback.improved and not callback.is_exhausted


@pytest.mark.parametrize("losses", [[0.5, 0.7], []])
def test_its_state_is_restored_with_another_patience(losses):
    callback = callback_of(1)
    improvements(callback, losses)
    state = json.loads(json.dumps(files.strict(callback.state())))
    same, longer = callback_of(1), callback_of(3)
    for again in (same, longer):
        again.restore(state)
        assert (again.best, again.wait) == (callback.best, callback.wait)
    assert same.is_exhausted == callback.is_exhausted == bool(losses)
    assert not longer.is_exhausted


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_training(loss):
    callback = TerminateOnNaN()
    callback.on_epoch_end(0, {"loss": 0.5})
    with pytest.raises(Diverged, match=f"the loss of epoch 2 is {loss}; lower"):
        callback.on_epoch_end(1, {"loss": loss})
