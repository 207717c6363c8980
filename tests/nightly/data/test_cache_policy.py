"""Caching changes no bit; an example that cannot be decoded is named."""

import keras
import numpy as np
import pytest
from picture_source import Pictures, load
from toy_problem import TASK, machine, settings_of

from pipeline.config import registry
from pipeline.data import batching
from pipeline.training.model_builder import build
from pipeline.utils.errors import UsageError


def train_with_cache(source, kind, engine="gradient_tape"):
    splits, decisions = load(source, cache=kind)
    settings = settings_of(train={"epochs": 2, "batch_size": 4})
    keras.utils.set_random_seed(0)
    batches = batching.training(splits["train"], settings.train, 0)
    validation = batching.evaluation(splits["validation"], settings.train)
    model = build(TASK, settings, machine(), batches)
    model.steps_per_execution = 3
    history = registry.load("engines", engine)(model, batches, validation, [])
    assert decisions[0].value == kind
    return [v.numpy() for v in model.variables], history


@pytest.fixture(autouse=True)
def cache_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def reference():
    return train_with_cache(Pictures(), "memory")


@pytest.mark.parametrize("kind", ["device", "disk", "none"])
def test_no_bit_depends_on_the_cache(kind, reference):
    weights, history = reference
    other_weights, other_history = train_with_cache(Pictures(), kind)
    assert history == other_history
    for value, other_value in zip(weights, other_weights, strict=True):
        np.testing.assert_array_equal(value, other_value)


@pytest.mark.parametrize("engine", registry.names("engines"))
def test_a_damaged_example_is_named_in_training_without_a_cache(engine):
    with pytest.raises(UsageError, match="cats/117.png cannot be decoded"):
        train_with_cache(Pictures(damaged=17), "none", engine)
