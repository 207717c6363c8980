"""The step against independent references: stock Keras, NumPy, finite differences."""

import numpy as np
import pytest
from toy_problem import TASK, random_split, ready, settings_of

from pipeline.config import config, registry
from pipeline.data import batching


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
    seen, prepare = [], TASK.input.prepare
    monkeypatch.setattr(
        TASK.input, "prepare", lambda batch: seen.append(batch) or prepare(batch)
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
