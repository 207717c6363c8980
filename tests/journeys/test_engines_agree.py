"""The step against independent references: stock Keras, NumPy, finite differences."""

import itertools

import keras
import numpy as np
import pytest
from engine_epoch import STEPS, trained
from toy_problem import TASK, machine, random_split, settings_of

from pipeline.config import registry
from pipeline.data import batching
from pipeline.training.model_builder import build

ENGINES = registry.names("engines")


def ready(settings, split, precision="float32"):
    """A built model and its training batches."""
    batches = batching.training(split, settings.train, settings.runtime.seed)
    model = build(TASK, settings, machine(precision), batches)
    model.step.set_inputs(batches, batching.evaluation(split, settings.train))
    return model, batches


OTHERS = itertools.product(registry.names("optimizers"), ("float32", "mixed_bfloat16"))


@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [
        ("adam", "mixed_float16"),
        *(pytest.param(*pair, marks=pytest.mark.long) for pair in OTHERS),
    ],
)
def test_engines_agree_bit_for_bit_with_one_trace(optimizer, precision):
    """Weights, optimizer state, dropout's state and history, with augmentation and
    schedule; the last epoch has one step.
    """
    outcomes = []
    for name in ENGINES:
        settings = settings_of(
            data={"augment": {"flip": {}, "crop": {"padding": 1}}},
            model={"name": "sequential"},
            train={
                "optimizer": optimizer,
                "optimizer_options": {},
                "schedule": "cosine",
                "epochs": 9,
                "steps": 9,
            },
        )
        split = random_split(37)
        model, batches = ready(settings, split, precision)
        validation = batching.evaluation(split, settings.train)
        history = registry.load("engines", name)(model, batches, validation, [])
        calls = model.step.compiled.values()
        assert [call.experimental_get_tracing_count() for call in calls] == [1, 1]
        assert int(model.step.update.steps.numpy()) == 9
        outcomes.append((history, [v for group in model.state.values() for v in group]))
    (history, variables), (other_history, others) = outcomes
    assert history == other_history and len(history["loss"]) == 3
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for one, other in zip(variables, others, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


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
