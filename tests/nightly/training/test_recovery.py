"""Retries: a lower learning rate after divergence, smaller micro-batches after out of
memory.
"""

import dataclasses
import json
import weakref
from types import SimpleNamespace

import keras
import non_finite_runs
import numpy as np
import pytest
import tensorflow as tf

from pipeline.config import command_line
from pipeline.fit import fit
from pipeline.runtime import dtype_policy
from pipeline.training import model_builder, recovery
from pipeline.training.recovery import Attempt
from pipeline.training.train_step import Step
from pipeline.utils.errors import Diverged, OutOfMemory, UsageError

ERROR = OutOfMemory("out of memory: x")


def digits(folder, **train):
    return fit(
        "digits",
        run_directory=folder,
        data={"limit": 100},
        model={"name": "tiny"},
        train={"epochs": 2, "batch_size": 8, "steps_per_execution": 4, **train},
        export={"enabled": False},
        log={"progress": False, "tensorboard": False},
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run in float32 that always has enough memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dtype_policy, "fast_policy", lambda: (None, "planted"))
        return digits(tmp_path_factory.mktemp("plain"))


@pytest.fixture
def memory(monkeypatch):
    """Limits the examples of a forward pass to `memory.limit`, and counts
    the failures.
    """
    box = SimpleNamespace(limit=10**9, refused=0)
    real = Step._forward_and_backward

    def limited(self, model, batch):
        if batch["id"].shape[0] > box.limit:
            box.refused += 1
            raise tf.errors.ResourceExhaustedError(
                None, None, "OOM when allocating tensor"
            )
        return real(self, model, batch)

    monkeypatch.setattr(Step, "_forward_and_backward", limited)
    return box


@pytest.fixture
def alive(monkeypatch):
    """The number of models of this run in memory whenever one is built."""
    models = []
    counts = []
    real = model_builder.build

    def build(*arguments, **options):
        counts.append(sum(model() is not None for model in models))
        model = real(*arguments, **options)
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(model_builder, "build", build)
    return counts


def model_of(factor=1.0):
    """A model with the attributes that `recovery.next_attempt` reads."""
    update = SimpleNamespace(factor=keras.Variable(factor))
    return SimpleNamespace(step=SimpleNamespace(update=update))


def options_of(**train):
    return command_line.recipe("digits").changed(train=train).train


def next_attempt(error, attempt, options, factor=1.0, replicas=1):
    model = model_of(factor)
    return recovery.next_attempt(error, attempt, options, model, replicas)


@pytest.mark.parametrize(
    ("limit", "engine", "has_trial"),
    [(2, "gradient_tape", True), (4, "model_fit", False)],
)
def test_the_micro_batch_is_halved_until_it_fits(
    plain, workplace, memory, monkeypatch, capsys, alive, limit, engine, has_trial
):
    """The trial of the precision runs out of memory, if there is one, otherwise the
    training.
    """
    arithmetic = ("mixed_bfloat16" if has_trial else None, "planted")
    monkeypatch.setattr(dtype_policy, "fast_policy", lambda: arithmetic)
    memory.limit = limit
    run = digits("run", engine=engine)
    for one, other in zip(
        plain.network.get_weights(), run.network.get_weights(), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)
    failures = {4: 1, 2: 2}[limit]
    assert memory.refused == failures and run.result["steps"] == plain.result["steps"]
    assert alive == [0] * (failures + 1), "models that did not fit are deleted"
    shown = capsys.readouterr().out
    assert shown.count("micro-batch ") == (1 if has_trial else failures)
    assert f"micro-batch {limit} (out of memory" in shown
    stored = json.loads((workplace / "run/decisions.json").read_text())
    assert [d["value"] for d in stored if d["name"] == "micro-batch"] == [str(limit)]
    again = dataclasses.replace(run.config, run_directory=run.directory)
    attempt = recovery.first_attempt(again, 1)
    assert attempt.accumulate == 8 // limit
    assert attempt.decisions[0].reason.startswith("as before")
    assert run.config.train.accumulate == 1, "otherwise the run could not be resumed"


def test_what_smaller_micro_batches_cannot_solve():
    with pytest.raises(UsageError, match="out of memory.*one example"):
        options = options_of(batch_size=8, accumulate=4)
        next_attempt(ERROR, Attempt(4), options, replicas=2)
    with pytest.raises(UsageError, match="lower --train.batch-size"):
        next_attempt(ERROR, Attempt(1), options_of(synchronized_batch_norm=True))
    exhausted = tf.errors.ResourceExhaustedError(
        None, None, "OOM when allocating tensor\nmore"
    )
    with (
        pytest.raises(
            UsageError, match="during evaluation: OOM when allocating tensor; lower"
        ),
        recovery.catch_out_of_memory(is_training=False),
    ):
        raise exhausted
    with pytest.raises(OutOfMemory), recovery.catch_out_of_memory(is_training=True):
        raise exhausted


def test_the_rate_is_halved_three_times():
    error = Diverged("training diverged: why; lower it")
    options = options_of(on_bad_steps="roll-back")
    attempt = Attempt(1)
    with pytest.raises(Diverged, match="why; lower it$"):
        next_attempt(error, attempt, options_of())
    factors = []
    for factor in (1.0, 0.5, 0.25):
        attempt = next_attempt(error, attempt, options, factor)
        factors.append(attempt.factor)
    assert factors == [0.5, 0.25, 0.125]
    (decision,) = attempt.decisions
    assert str(decision) == "0.125 times the learning rate (training diverged: why)"
    with pytest.raises(Diverged, match="it was already rolled back 3 times"):
        next_attempt(error, attempt, options, 0.125)


def test_a_run_is_rolled_back_to_a_lower_rate(workplace, capsys):
    """Plain descent at 0.4 grows by 2.2 per step (largest eigenvalue 8); at 0.2 it
    shrinks.
    """
    train = {
        "batch_size": 343,
        "epochs": 90,
        "optimizer_options": {},
        "learning_rate": 0.4,
    }
    train |= {"on_bad_steps": "roll-back", "checkpoint_steps": 10}
    options = non_finite_runs.settings(train=train, data={"test": 0.2})
    run = fit("regression_linear", run_directory="rolled", **options)
    (line,) = [
        one
        for one in capsys.readouterr().out.splitlines()
        if one.startswith("roll-back")
    ]
    assert line.startswith("roll-back  0.5 times the learning rate (train")
    assert "; again after step " in line
    assert float(run.network.step.update.factor.numpy()) == 0.5
    assert run.result["steps"] == 90 == len(run.history["loss"])
    assert run.history["loss"][-1] < max(3000, 1e-3 * max(run.history["loss"]))
    stored = json.loads((workplace / "rolled/decisions.json").read_text())
    (value,) = [d["value"] for d in stored if d["name"] == "roll-back"]
    assert line.startswith(f"roll-back  {value} (")
