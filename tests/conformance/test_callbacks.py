"""Every callback: made from the context alone, and harmless to the weights that are trained."""

import dataclasses

import keras
import numpy as np
import pytest
from siblings import options_of, require_described
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

CALLBACKS = registry.names("callbacks")
LIMIT = "1h"  # `pace` does nothing without a limit, and not a bit where there is enough time


@pytest.fixture
def ready(tmp_path):
    """(model, batches, context) of a run of two epochs of four steps."""
    settings = settings_of(train={"epochs": 2})
    batches = batching.training(random_split(), settings.train, 0)
    model = build(TASK, settings, machine(), batches)
    run, stops = RunDirectory(tmp_path), Stops(LIMIT)
    folder = Checkpoints(model.state, run.checkpoints, True)
    return (
        model,
        batches,
        CallbackContext(
            run=run,
            batches=batches,
            checkpoint=CheckpointCallback(folder, batches, settings.train, stops),
            train=settings.train,
            log=Log(),
            stops=stops,
            time_limit=LIMIT,
            exports=False,
            evaluated=32,
            locate=str,
            mean=float,
            is_chief=True,
        ),
    )


def made(name, context):
    return registry.call("callbacks", name, options_of("callbacks", name), context)


@pytest.mark.parametrize("name", CALLBACKS)
def test_described(name):
    require_described("callbacks", name, "context")


@pytest.mark.parametrize("name", CALLBACKS)
def test_trains_the_same_weights_as_without_it(name, ready, tmp_path):
    model, batches, context = ready
    start = model.get_weights()
    # After the checkpoint callback, as what is written there has been saved.
    callbacks = [context.checkpoint, made(name, context)]
    assert isinstance(callbacks[1], keras.callbacks.Callback)
    history = registry.load("engines", "gradient_tape")(model, batches, None, callbacks)
    assert len(history["loss"]) == 2 and np.isfinite(history["loss"]).all()
    trained = model.get_weights()
    settings = settings_of(train={"epochs": 2})
    plain = build(TASK, settings, machine(), batches)
    for one, two in zip(start, plain.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    registry.load("engines", "gradient_tape")(plain, batches, None, [])
    for one, two in zip(trained, plain.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", CALLBACKS)
def test_of_several_workers_the_others_have_it_too_or_not_at_all(name, ready):
    """A callback that only writes or prints is None on a worker that is not the chief."""
    *_, context = ready
    found = made(name, dataclasses.replace(context, is_chief=False))
    assert found is None or isinstance(found, keras.callbacks.Callback)
