"""A new source, model, metric, ... is one function, in the package or in the user's own
code.
"""

import dataclasses
import importlib
import json
import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from extending_page import PAGE, write_module

from pipeline.config import command_line, registry
from pipeline.fit import fit
from pipeline.training.callback_context import CallbackContext
from pipeline.utils.errors import UsageError

# Registry -> a function of docs/extending.md, and one of its options.
NAMES = {
    "recipes": ("small_digits", None),
    "sources": ("stripes", "count"),
    "augment": ("invert", "one_in"),
    "inputs": ("angles", "turn"),
    "targets": ("ordered", "field"),
    "tasks": ("autoencoder", "whole"),
    "models": ("small", "width"),
    "engines": ("counting", None),
    "callbacks": ("stop_at", "accuracy"),
    "losses": ("focal", "gamma"),
    "metrics": ("top_k", "k"),
    "optimizers": ("rmsprop", "rho"),
    "schedules": ("halving", "times"),
}


@pytest.fixture
def mine(workplace, monkeypatch):
    """The examples of docs/extending.md, and an engine, as the module `mine`."""
    yield write_module(workplace, monkeypatch)
    sys.modules.pop("mine", None)


def test_one_of_each_trains_evaluates_and_exports(mine):
    """Each option has a value that is not its default."""
    assert set(NAMES) == set(registry.REGISTRIES)
    config = command_line.recipe("mine.small_digits").changed(
        source={"name": "mine.stripes", "options": {"count": 300}},
        task={"target": "mine.ordered", "target_options": {"field": "label"}},
        model={"options": {"width": 16}},
        data={"augment": {"mine.invert": {"one_in": 3}}},
        train={
            "epochs": 9,
            "engine": "mine.counting",
            "optimizer": "mine.rmsprop",
            "optimizer_options": {"rho": 0.8},
            "schedule": "mine.halving",
            "loss": "mine.focal",
            "metrics": {"mine.top_k": {"k": 1}},
            "callbacks": {"mine.stop_at": {"accuracy": 0.01}},
        },
    )  # the input and the task: the next tests
    run = fit(config)
    assert run.test["rank_error"] == 1 - run.test["accuracy"]
    accuracies = run.history["accuracy"]
    assert accuracies == run.history["top_1"]
    assert len(accuracies) < 9, "the callback ended training"
    assert 16 in [getattr(layer, "units", None) for layer in run.network.layers]
    assert float(run.network.optimizer.rho) == pytest.approx(0.8)
    assert (mine.parent / "engine.txt").read_text() == str(run.result["steps"])
    assert run.result["verification"]["passed"]
    saved = json.loads((run.directory / "config.json").read_text())
    assert saved["model"]["name"] == "mine.small" and saved["recipe"] == "small_digits"


def test_the_loss_and_the_metric_of_the_page_are_right(mine):
    module = importlib.import_module("mine")
    metadata = {"class_names": ["a", "b", "c"]}
    logits = tf.constant(np.random.default_rng(0).normal(size=(4, 3)), tf.float32)
    y = tf.constant([0, 2, 1, 1])
    expected = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    loss = module.focal(metadata, gamma=0.0)
    np.testing.assert_allclose(loss(tf.one_hot(y, 3), logits), expected, rtol=1e-5)
    create = registry.load("metrics", "mine.top_k")(metadata, k=2)
    names = {"input": "features", "feature_names": ["a"], "target": "classes"}
    task = registry.call("tasks", "supervised", {}, {**names, **metadata})
    metric = create(task, (3,))
    two = np.eye(3, dtype=np.float32)[[0, 1]]
    metric.update_state(
        two, np.float32([[1, 2, 3], [1, 2, 3]]), sample_weight=[1.0, 1.0]
    )
    assert metric.result() == 0.5


def test_the_page_lists_what_a_callback_is_given():
    table = PAGE.partition("| attribute | what it is |")[2].partition("\n\n")[0]
    named = set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| ([^|]*)", table, re.MULTILINE)))
    )
    assert named == {field.name for field in dataclasses.fields(CallbackContext)}


@pytest.mark.parametrize("kind", NAMES)
def test_options_are_checked_and_near_misses_are_named(mine, kind):
    name, option = NAMES[kind]
    sibling = registry.find(kind, f"mine.{name}")
    assert sibling.summary.endswith(".") and sibling.path == mine
    with pytest.raises(UsageError, match=f"did you mean '{name}'"):
        registry.find(kind, f"mine.{name[:-1]}")
    if option is None:
        return
    with pytest.raises(UsageError, match=f"'{option}s'; did you mean '{option}'"):
        registry.check(kind, f"mine.{name}", {f"{option}s": 1}, "{}")
    with pytest.raises(UsageError, match=f"{option} of mine.{name} must be "):
        registry.check(kind, f"mine.{name}", {option: {}}, "{}")


def test_a_module_that_raises_is_named_with_its_line(mine):
    text = mine.read_text()
    mine.write_text(f"{text}\n1 / 0\n")
    line = len(text.splitlines()) + 2
    with pytest.raises(UsageError) as caught:
        fit("digits", model={"name": "mine.small"})
    assert f"{mine}, line {line}, fails to import" in str(caught.value)
    assert "ZeroDivisionError: division by zero" in str(caught.value)
    assert not (mine.parent / "runs").exists()
