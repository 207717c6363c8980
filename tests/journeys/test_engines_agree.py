"""Both engines give the same weights bit for bit, also when one continues what the
other began.
"""

import functools
import itertools

import keras
import numpy as np
import pytest
from engine_epoch import STEPS, trained
from toy_problem import TASK, machine, random_split, settings_of

from pipeline.config import registry
from pipeline.data import batching
from pipeline.runtime.signals import ELSEWHERE, Stopped, StopSignals
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.training.callbacks.early_stopping import EarlyStopping
from pipeline.training.checkpoints import Checkpoints
from pipeline.training.model_builder import build

ENGINES = registry.names("engines")
# Four steps in an epoch; the third epoch has one.
SPLIT, LAST_STEP = random_split(37), 9


def ready(optimizer, precision):
    """(settings, model, training batches) with all that is state: dropout, the loss
    scale, averages, a schedule; with accumulation, clipping and augmentation.
    """
    settings = settings_of(
        data={"augment": {"flip": {}, "crop": {"padding": 1}}},
        model={"name": "sequential"},
        train={
            "optimizer": optimizer,
            "optimizer_options": {},
            "schedule": "cosine",
            "epochs": 9,
            "steps": LAST_STEP,
            "accumulate": 2,
            "clip_norm": 0.5,
            "ema": 0.9,
        },
    )
    batches = batching.training(SPLIT, settings.train, settings.runtime.seed)
    model = build(TASK, settings, machine(precision), batches)
    return settings, model, batches


def train(engine, settings, model, batches, callbacks=()):
    """The history after an engine has taken these batches."""
    validation = batching.evaluation(SPLIT, settings.train)
    model.step.set_inputs(batches, validation)
    load = registry.load("engines", engine)
    return load(model, batches, validation, list(callbacks))


def state_of(model):
    return [v.numpy() for group in model.state.values() for v in group]


@functools.cache
def whole(engine, optimizer="adam", precision="mixed_float16"):
    """(history, state, traces of each call) after a training without a pause."""
    settings, model, batches = ready(optimizer, precision)
    history = train(engine, settings, model, batches)
    assert int(model.step.update.steps.numpy()) == LAST_STEP
    calls = model.step.compiled.values()
    traces = [call.experimental_get_tracing_count() for call in calls]
    return history, state_of(model), traces


def require_equal(one, other):
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


OTHERS = itertools.product(registry.names("optimizers"), ("float32", "mixed_bfloat16"))


@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [
        ("adam", "mixed_float16"),
        *(pytest.param(*pair, marks=pytest.mark.long) for pair in OTHERS),
    ],
)
def test_engines_agree_bit_for_bit_with_one_trace(optimizer, precision):
    """Weights, optimizer state, averages, loss scale, dropout's state and history."""
    outcomes = [whole(name, optimizer, precision) for name in ENGINES]
    (history, state, traces), (other_history, other_state, other_traces) = outcomes
    assert traces == other_traces == [1, 1]
    assert history == other_history and len(history["loss"]) == 3
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    require_equal(state, other_state)


class StopsAt(StopSignals):
    """Asks to stop after a step of a model."""

    def __init__(self, model, step):
        super().__init__()
        self.model, self.step = model, step

    def reason(self, agreed=float):
        return ELSEWHERE if self.model.step.position == self.step else None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("model_fit", "gradient_tape"),
        pytest.param("gradient_tape", "model_fit", marks=pytest.mark.long),
    ],
)
def test_one_engine_continues_within_an_epoch_what_the_other_began(
    tmp_path, first, second
):
    def with_checkpoints():
        settings, model, batches = ready("adam", "mixed_float16")
        saved = Checkpoints(model.state, tmp_path)
        made = CheckpointCallback(saved, EarlyStopping(None), batches, settings.train)
        return settings, model, made

    settings, model, made = with_checkpoints()
    made.stops = StopsAt(model, 6)
    with pytest.raises(Stopped):
        train(first, settings, model, made.batches, [made.early_stopping, made])
    assert made.step == 6

    settings, model, made = with_checkpoints()
    left = made.resume()
    assert (left.first_step, left.first_epoch) == (6, 1)
    train(second, settings, model, left, [made.early_stopping, made])
    history, state, _ = whole(first)
    assert made.history == history
    require_equal(state_of(model), state)


OPTIONS = {
    "epochs": 3,
    "steps": 2 * STEPS + 3,
    "optimizer": "adam",
    "optimizer_options": {},
}


@pytest.fixture(scope="module")
def single():
    """The variables after a training with one step in each call."""
    model, _ = trained(calls=1, **OPTIONS)
    return [variable.numpy() for variable in model.variables]


@pytest.mark.parametrize(
    "engine", ["model_fit", pytest.param("gradient_tape", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("calls", [3, pytest.param(100, marks=pytest.mark.long)])
def test_calls_of_any_length_are_the_same_steps(single, engine, calls):
    firsts = []

    class Record(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            firsts.append(batch)

    model, batches = trained(
        calls=calls, engine=engine, callbacks=[Record()], **OPTIONS
    )
    for one, other in zip(single, model.variables, strict=True):
        np.testing.assert_array_equal(one, other.numpy())
    epoch = list(range(0, STEPS, calls))
    assert firsts == [*epoch, *epoch, *range(0, 3, calls)]
    assert int(model.optimizer.iterations) == batches.last_step
