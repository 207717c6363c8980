"""Every callback is made from the context alone and does not change the trained
weights.
"""

import dataclasses
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from registered_functions import options_of
from toy_problem import TASK, machine, random_split, settings_of

from pipeline.config import registry
from pipeline.config.sections import LogConfig
from pipeline.data import batching
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import StopSignals
from pipeline.training.callback_context import CallbackContext
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.training.callbacks.early_stopping import EarlyStopping
from pipeline.training.checkpoints import Checkpoints
from pipeline.training.model_builder import build

CALLBACKS = registry.names("callbacks")
LIMIT = "1h"  # `time_budget` does nothing without a limit, or if there is enough time


def built():
    """(model, batches) of a run of two epochs of four steps."""
    settings = settings_of(train={"epochs": 2})
    batches = batching.training(random_split(), settings.train, 0)
    return build(TASK, settings, machine(), batches), batches


@pytest.fixture
def ready(tmp_path):
    """(model, batches, context)."""
    model, batches = built()
    train = settings_of(train={"epochs": 2, "evaluate_every": 1}).train
    run, stops = RunDirectory(tmp_path), StopSignals(LIMIT)
    checkpoints = Checkpoints(model.state, run.checkpoints, True)
    context = CallbackContext(
        run=run,
        batches=batches,
        checkpoint=CheckpointCallback(
            checkpoints, EarlyStopping(None), batches, train, stops
        ),
        train=train,
        log=LogConfig(),
        stops=stops,
        time_limit=LIMIT,
        exports=False,
        evaluated=32,
        locate=str,
        is_chief=True,
        evaluate=lambda model: SimpleNamespace(metrics={"f1": 0.5}, pictures={}),
    )
    return model, batches, context


@pytest.fixture(scope="module")
def plain():
    """Weights before and after training without callbacks."""
    model, batches = built()
    before = model.get_weights()
    registry.load("engines", "gradient_tape")(model, batches, None, [])
    return before, model.get_weights()


def made(name, context):
    return registry.call("callbacks", name, options_of("callbacks", name), context)


@pytest.mark.parametrize(
    "names",
    [CALLBACKS, *(pytest.param([name], marks=pytest.mark.long) for name in CALLBACKS)],
    ids=["all", *CALLBACKS],
)
def test_trains_the_same_weights_as_without_it(names, ready, plain):
    model, batches, context = ready
    start = model.get_weights()
    # After the checkpoint callback, which must save first.
    early_stopping = context.checkpoint.early_stopping
    more = [made(name, context) for name in names]
    assert all(isinstance(one, keras.callbacks.Callback) for one in more)
    callbacks = [early_stopping, context.checkpoint, *more]
    history = registry.load("engines", "gradient_tape")(model, batches, None, callbacks)
    assert len(history["loss"]) == 2 and np.isfinite(history["loss"]).all()
    for weights, expected in zip((start, model.get_weights()), plain, strict=True):
        for one, two in zip(weights, expected, strict=True):
            np.testing.assert_array_equal(one, two)


def test_other_workers_have_it_or_none(ready):
    """A callback that only writes or prints is None on a worker that is
    not the chief.
    """
    *_, context = ready
    other = dataclasses.replace(context, is_chief=False)
    found = {name: made(name, other) for name in CALLBACKS}
    assert {name for name in CALLBACKS if found[name] is None} == {
        "metric_logger",
        "progress",
    }
