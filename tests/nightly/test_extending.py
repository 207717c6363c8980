"""A new source, model, metric, ... is one function, in the package or in the user's own
code.
"""

import sys

import numpy as np
import pytest
from extending_page import write_module

from pipeline.fit import fit


@pytest.fixture
def mine(workplace, monkeypatch):
    """The examples of docs/extending.md, and an engine, as the module `mine`."""
    yield write_module(workplace, monkeypatch)
    sys.modules.pop("mine", None)


@pytest.fixture
def few_epochs():
    return {"batch_size": 32, "epochs": 6, "optimizer": "adam", "learning_rate": 0.01}


def test_an_input_of_the_page_is_joined_with_the_target_of_the_page(mine, few_epochs):
    """Quarters of the day from an hour, which a linear model cannot tell from it."""
    hours = np.random.default_rng(0).uniform(-48, 48, (400, 1)).astype(np.float32)
    quarters = (hours[:, 0] % 24 // 6).astype(np.int64)
    task = {
        "input": "mine.angles",
        "input_options": {"turn": 24.0},
        "target": "mine.ordered",
    }
    run = fit(
        model={"name": "linear"},
        data=(hours, quarters),
        task=task,
        train={**few_epochs, "epochs": 60},
    )
    assert run.test["accuracy"] > 0.9 and 0 <= run.test["rank_error"] < 0.3
    assert run.result["verification"]["passed"]
    prediction = run.predict(angles=np.float32([[3], [27], [-3]]))
    assert prediction["class"].tolist() == [0, 0, 3]


def test_a_whole_task_of_the_page_is_trained_and_exported(mine, few_epochs):
    run = fit(
        "mine.small_digits",
        task={"name": "mine.autoencoder", "whole": 128},
        train=few_epochs,
    )
    losses = run.history["val_loss"]
    assert losses[-1] < 0.5 * losses[0]
    assert run.test["loss"] == pytest.approx(losses[-1], rel=0.5)
    assert run.result["verification"]["passed"]
    images = run.splits["test"].column("image")[:3]
    error = np.abs(run.predict(images=images)["image"] - images / 128)
    assert error.mean() < 0.2
