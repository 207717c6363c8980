"""No callback of every run changes the trained weights."""

import dataclasses

import numpy as np
import pytest
from small import TASK, machine, random_split, settings_of

from pipeline.config import registry
from pipeline.config.sections import Log
from pipeline.data import batching
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import Stops
from pipeline.training.callback_context import CallbackContext
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.training.checkpoints import Checkpoints
from pipeline.training.model_builder import build
from pipeline.training.trainer import standard_callbacks

NUMBER = 7  # besides the one that saves checkpoints
LIMIT = "1h"  # `TimeBudget` does nothing if there is enough time


def built():
    """(model, batches) of a run of two epochs of four steps."""
    settings = settings_of(train={"epochs": 2})
    batches = batching.training(random_split(), settings.train, 0)
    return build(TASK, settings, machine(), batches), batches


@pytest.fixture
def ready(tmp_path):
    """(model, batches, context)."""
    model, batches = built()
    train = settings_of(train={"epochs": 2}).train
    run, stops = RunDirectory(tmp_path), Stops(LIMIT)
    checkpoints = Checkpoints(model.state, run.checkpoints, True)
    context = CallbackContext(
        run=run,
        batches=batches,
        checkpoint=CheckpointCallback(checkpoints, batches, train, stops),
        train=train,
        log=Log(),
        stops=stops,
        time_limit=LIMIT,
        exports=False,
        evaluated=32,
        locate=str,
        is_chief=True,
    )
    return model, batches, context


@pytest.fixture(scope="module")
def plain():
    """Weights before and after training without callbacks."""
    model, batches = built()
    before = model.get_weights()
    registry.load("engines", "gradient_tape")(model, batches, None, [])
    return before, model.get_weights()


@pytest.mark.parametrize("place", range(NUMBER))
def test_trains_the_same_weights_as_without_it(place, ready, plain):
    model, batches, context = ready
    start = model.get_weights()
    found = standard_callbacks(context)
    assert len(found) == NUMBER + 1
    found.remove(context.checkpoint)
    # After the checkpoint callback, which must save first.
    callbacks = [context.checkpoint, found[place]]
    history = registry.load("engines", "gradient_tape")(model, batches, None, callbacks)
    assert len(history["loss"]) == 2 and np.isfinite(history["loss"]).all()
    for weights, expected in zip((start, model.get_weights()), plain, strict=True):
        for one, two in zip(weights, expected, strict=True):
            np.testing.assert_array_equal(one, two)


def test_other_workers_have_those_that_neither_write_nor_print(ready):
    *_, context = ready
    found = standard_callbacks(dataclasses.replace(context, is_chief=False))
    names = {type(callback).__name__ for callback in found}
    assert len(names) == NUMBER - 1 and not names & {"MetricLogger", "Progress"}
