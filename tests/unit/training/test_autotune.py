"""Steps per call and precision: chosen by trials that leave no trace."""

from types import SimpleNamespace

import numpy as np
import pytest
from engine_epoch import STEPS, prepared
from toy_problem import machine

from pipeline.runtime import dtype_policy
from pipeline.runtime.watchdog import Watchdog
from pipeline.training import autotune, distributed


def test_the_trial_leaves_no_trace_but_the_compiled_one(monkeypatch):
    model, batches = prepared(
        model="sequential", optimizer="adam", optimizer_options={}, ema=0.9
    )
    before = [v.numpy() for group in model.state.values() for v in group]
    decision = autotune.choose_steps_per_execution(model, "auto", batches, None)
    after = [v.numpy() for group in model.state.values() for v in group]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    assert 1 <= model.steps_per_execution <= STEPS
    assert decision.value == f"{model.steps_per_execution} steps"
    (trace,) = model.step.compiled.values()
    assert distributed.StepFunction(model, "train", batches)._run is trace
    assert trace.experimental_get_tracing_count() == 1
    assert autotune.choose_steps_per_execution(
        model, 5, batches, None
    ).reason.startswith("requested")
    assert (
        autotune.choose_steps_per_execution(model, 10**6, batches, None).value
        == f"{STEPS} steps"
    )
    taken, call = [], distributed.StepFunction.__call__
    monkeypatch.setattr(
        distributed.StepFunction, "__call__", lambda *a: taken.append(a) or call(*a)
    )
    monkeypatch.setattr(autotune, "MAX_CALL", 0.0)
    autotune.seconds_per_step(model, batches)
    assert len(taken) == 2, "a slow step is traced and timed, not timed twice"


@pytest.mark.parametrize(
    ("bfloat16", "steps", "chosen"),
    [
        ([0.05] * 3, 10_000, "mixed_bfloat16"),
        ([0.086, 0.09, 0.088], 10_000, "mixed_bfloat16"),
        ([0.086, 0.11, 0.088], 10_000, "float32"),  # within the noise
        ([0.098] * 3, 10_000, "float32"),
        ([0.05] * 3, 10, "float32"),
    ],
)
def test_precision_is_chosen_by_its_gain(monkeypatch, bfloat16, steps, chosen):
    monkeypatch.setattr(
        dtype_policy, "fast_policy", lambda: ("mixed_bfloat16", "it is there")
    )
    times = {"float32": [0.1] * 4, "mixed_bfloat16": [*bfloat16]}
    monkeypatch.setattr(
        autotune, "seconds_per_step", lambda model, train: times[model.precision].pop(0)
    )

    def build(started):
        step = SimpleNamespace(set_inputs=lambda *_: None)
        return SimpleNamespace(precision=started.precision, step=step)

    train = SimpleNamespace(first_step=0, last_step=steps)
    watchdog = Watchdog(None, None)
    found, model = autotune.choose_precision(machine(), build, train, None, watchdog)
    assert model.precision == found.precision == found.decisions[-1].value == chosen
    monkeypatch.setattr(dtype_policy, "fast_policy", lambda: (None, "no bfloat16"))
    found, _ = autotune.choose_precision(machine(), build, train, None, watchdog)
    assert found.decisions[-1].reason == "no bfloat16"
