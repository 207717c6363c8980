"""A run that diverges goes back with a lower rate; one that is out of memory takes less at once."""

import dataclasses
import json
import weakref
from types import SimpleNamespace

import keras
import numpy as np
import poison
import pytest
import tensorflow as tf

from pipeline.config import command_line
from pipeline.fit import fit
from pipeline.runtime import environment
from pipeline.training import recovery, trainer
from pipeline.training.train_step import Step
from pipeline.utils.errors import Diverged, OutOfMemory, UsageError

DIGITS = {
    "data": {"limit": 100},
    "model": {"name": "tiny"},
    "train": {"epochs": 2, "batch_size": 8, "steps_per_call": 4},
    "export": {"enabled": False},
    "log": {"progress": False, "tensorboard": False},
}


def digits(folder, **train):
    return fit("digits", run_directory=folder, **{**DIGITS, "train": {**DIGITS["train"], **train}})


@pytest.fixture
def memory(monkeypatch):
    """Lets `memory.limit` examples into a forward pass; counts those that were too many."""
    box = SimpleNamespace(limit=10**9, refused=0)
    real = Step._forward_and_backward

    def limited(self, model, ticket):
        if ticket["weight"].shape[0] > box.limit:
            box.refused += 1
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return real(self, model, ticket)

    monkeypatch.setattr(Step, "_forward_and_backward", limited)
    return box


def model_of(factor=1.0, layers=()):
    """What `recovery.after` looks at."""
    update = SimpleNamespace(factor=keras.Variable(factor))
    return SimpleNamespace(step=SimpleNamespace(update=update), _flatten_layers=lambda: layers)


def plan_of(**train):
    return recovery.Plan(command_line.recipe("digits").changed(train=train))


@pytest.fixture
def alive(monkeypatch):
    """How many models of this run are in memory whenever one is built."""
    models, counts, real = [], [], trainer.build

    def build(*arguments):
        counts.append(sum(model() is not None for model in models))
        model = real(*arguments)
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(trainer, "build", build)
    return counts


@pytest.mark.parametrize(
    ("limit", "engine", "is_tried"),
    [
        (4, "model_fit", False),
        (2, "gradient_tape", True),
        *(pytest.param(1, "model_fit", tried, marks=pytest.mark.long) for tried in (False, True)),
    ],
)
def test_the_micro_batch_is_halved_until_it_fits(
    workplace, memory, monkeypatch, capsys, alive, limit, engine, is_tried
):
    """Out of memory is the first trial of the precision, where there is one, else the training."""
    arithmetic = ("mixed_bfloat16" if is_tried else None, "planted")
    monkeypatch.setattr(environment, "fast_precision", lambda: arithmetic)
    monkeypatch.setattr(recovery, "normalises_apart", lambda model: isinstance(model, keras.Model))
    plain = digits("plain", accumulate=8 // limit, engine=engine)
    memory.limit = limit
    del alive[:]
    run = digits("run", engine=engine)
    for one, other in zip(plain.model.get_weights(), run.model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    tries = {4: 1, 2: 2, 1: 3}[limit]
    # `plain` is there all the time; the models that were too large are not.
    assert alive == [1] * (tries + 1)
    assert memory.refused == tries and run.result["steps"] == plain.result["steps"]
    shown = capsys.readouterr().out
    assert shown.count("micro-batch") == (1 if is_tried else tries)
    assert f"micro-batch {limit} (out of memory" in shown
    assert "BatchNormalization sees these smaller batches" in shown
    stored = json.loads((workplace / "run/decisions.json").read_text())
    assert [d["value"] for d in stored if d["name"] == "micro-batch"] == [str(limit)]
    begun = recovery.begun(dataclasses.replace(run.config, run_directory=run.directory), 1)
    assert begun.settings.train.accumulate == 8 // limit
    assert begun.decisions[0].reason.startswith("as this run found")
    assert recovery.begun(begun.settings, 4).settings.train.accumulate == 8 // limit
    assert run.config.train.accumulate == 1, "the run would be refused when it is given again"


@pytest.mark.parametrize("batch_size", [1, 12, 15, 256, 343])
@pytest.mark.parametrize("limit", [1, 3, 16, 256])
def test_every_limit_is_found_in_a_few_tries(batch_size, limit):
    plan, tries = plan_of(batch_size=batch_size), 1
    while batch_size // plan.settings.train.accumulate > limit:
        before = plan.settings.train.accumulate
        plan = recovery.after(OutOfMemory("out of memory: x"), plan, model_of(), 1)
        tries += 1
        assert plan.settings.train.accumulate >= 2 * before
        assert batch_size % plan.settings.train.accumulate == 0
    assert tries <= 9 and len(plan.decisions) <= 1


def test_less_than_one_example_is_too_much():
    plan = plan_of(batch_size=8, accumulate=4)
    with pytest.raises(UsageError, match="out of memory: x; a micro-batch is one example on each"):
        recovery.after(OutOfMemory("out of memory: x"), plan, model_of(), 2)


def test_batch_normalisation_is_told_of_and_synchronised_it_is_refused():
    error = OutOfMemory("out of memory: x")
    model = model_of(layers=[keras.layers.BatchNormalization()])
    (decision,) = recovery.after(error, plan_of(batch_size=8), model, 1).decisions
    assert "BatchNormalization sees these smaller batches" in decision.reason
    (decision,) = recovery.after(error, plan_of(batch_size=8), model_of(), 1).decisions
    assert "BatchNormalization" not in decision.reason
    with pytest.raises(UsageError, match="lower --train.batch-size"):
        recovery.after(error, plan_of(synchronized_batch_norm=True), model, 1)


def test_an_evaluation_out_of_memory_is_no_reason_to_cut_batches():
    exhausted = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor\nmore")
    with (
        pytest.raises(UsageError, match="in an evaluation: OOM when allocating tensor; lower"),
        recovery.out_of_memory(is_training=False),
    ):
        raise exhausted
    with pytest.raises(OutOfMemory), recovery.out_of_memory(is_training=True):
        raise exhausted


def test_the_rate_is_halved_three_times():
    error, plan = Diverged("training diverged: why; lower it"), plan_of(on_bad_steps="roll-back")
    with pytest.raises(Diverged, match="why; lower it$"):
        recovery.after(error, plan_of(), model_of(), 1)
    factors = []
    for factor in (1.0, 0.5, 0.25):
        plan = recovery.after(error, plan, model_of(factor), 1)
        factors.append(plan.factor)
    assert factors == [0.5, 0.25, 0.125] and len(plan.decisions) == 1
    assert str(plan.decisions[0]) == "0.125 times the learning rate (training diverged: why)"
    with pytest.raises(Diverged, match="it was rolled back 3 times before"):
        recovery.after(error, plan, model_of(0.125), 1)


def test_a_run_is_rolled_back_to_a_lower_rate(workplace, capsys):
    """Plain descent at 0.4 grows by 2.2 a step (largest eigenvalue 8); at 0.2 it shrinks."""
    train = {"batch_size": 343, "epochs": 90, "optimizer_options": {}, "learning_rate": 0.4}
    train |= {"on_bad_steps": "roll-back", "checkpoint_steps": 10}
    options = poison.settings(train=train, data={"test": 0.2})
    run = fit("regression_linear", run_directory="rolled", **options)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("roll-back")]
    assert len(lines) == 1 and lines[0].startswith("roll-back  0.5 times the learning rate (train")
    assert "; again after step " in lines[0]
    assert float(run.model.step.update.factor.numpy()) == 0.5
    assert run.result["steps"] == 90 and len(run.history["loss"]) == 90
    assert run.history["loss"][-1] < max(3000, 1e-3 * max(run.history["loss"]))
    stored = json.loads((workplace / "rolled/decisions.json").read_text())
    (value,) = [d["value"] for d in stored if d["name"] == "roll-back"]
    assert lines[0].startswith(f"roll-back  {value} (")


@pytest.mark.long
def test_a_roll_back_that_does_not_help_ends(workplace, capsys):
    generator = np.random.default_rng(5)
    options = {"max_bad_steps": 1, "on_bad_steps": "roll-back", "epochs": 1}
    with pytest.MonkeyPatch.context() as patch:
        folder = workplace / "run"
        told = poison.injected(patch, folder, "features", "gradient_tape", generator, **options)
    assert told == "features: diverged"
    shown = capsys.readouterr().out
    assert [f"roll-back  {factor} times" in shown for factor in (0.5, 0.25, 0.125, 0.0625)] == [
        *(True, True, True, False)
    ]
    assert shown.count("again from the start") == 3
