"""The step against independent references: stock Keras, NumPy, finite differences."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from toy_problem import TASK, machine, random_split, settings_of

from pipeline.config import config, registry
from pipeline.data import batching
from pipeline.training.model_builder import build

ENGINES = registry.names("engines")


def ready(settings, split, precision="float32"):
    """A built model and its training batches."""
    batches = batching.training(split, settings.train, settings.runtime.seed)
    model = build(TASK, settings, machine(precision), batches)
    model.step.set_inputs(batches, batching.evaluation(split, settings.train))
    return model, batches


def test_padding_counts_neither_in_loss_nor_in_accuracy():
    """21 examples in batches of 8: three of padding."""
    split, settings = random_split(21), settings_of(train={"steps": 1})
    model, batches = ready(settings, split)
    evaluation = batching.evaluation(split, config.TrainConfig(batch_size=2))
    history = registry.load("engines", "gradient_tape")(model, batches, evaluation, [])
    columns = split.take(np.arange(21))
    outputs = model(columns["image"].astype(np.float32) / 255, training=False).numpy()
    log_shares = outputs - np.log(np.exp(outputs).sum(1, keepdims=True))
    losses, right = -log_shares[np.arange(21), columns["label"]], outputs.argmax(1)
    assert history["val_loss"] == [pytest.approx(losses.mean(), rel=1e-5)]
    assert history["val_accuracy"] == [
        pytest.approx((right == columns["label"]).mean())
    ]


def test_training_augments_and_evaluation_does_not(monkeypatch):
    settings = settings_of(data={"augment": {"crop": {"padding": 2}}})
    model, batches = ready(settings, random_split())
    model.step.set_inputs(batches, batches)
    seen, prepare = [], TASK.prepare
    monkeypatch.setattr(
        TASK, "prepare", lambda batch: seen.append(batch) or prepare(batch)
    )
    batch, *_ = batches.dataset(0)
    model.step.train(model, batch)
    model.step.evaluate(model, batch)
    assert (seen[0]["image"].numpy() != batch["image"].numpy()).any()
    np.testing.assert_array_equal(seen[1]["image"], batch["image"])
    later = {**batch, "epoch": batch["epoch"] + 1}
    again, next_epoch = (model.step.augment(b)["image"].numpy() for b in (batch, later))
    np.testing.assert_array_equal(again, seen[0]["image"])
    assert (again != next_epoch).any(), "every epoch has the same augmentation"


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


@pytest.mark.filterwarnings("ignore:Even though the `tf.config")
@pytest.mark.parametrize(
    ("engine", "accumulate"), [("model_fit", 1), ("gradient_tape", 2)]
)
def test_functions_may_run_eagerly(engine, accumulate):
    """`tf.config.run_functions_eagerly`, for debugging: the same weights,
    with dropout.
    """
    train = {"steps": 3, "steps_per_call": 2, "accumulate": accumulate}
    settings, split = (
        settings_of(model={"name": "sequential"}, train=train),
        random_split(24),
    )
    weights = []
    for is_eager in (False, True):
        model, batches = ready(settings, split)
        tf.config.run_functions_eagerly(is_eager)
        try:
            evaluation = batching.evaluation(split, settings.train)
            registry.load("engines", engine)(model, batches, evaluation, [])
        finally:
            tf.config.run_functions_eagerly(False)
        weights.append(model.get_weights())
    for compiled, eager in zip(*weights, strict=True):
        np.testing.assert_allclose(eager, compiled, atol=1e-6)
