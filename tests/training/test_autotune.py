"""How many steps a call takes, in what arithmetic: decided by trials that leave no trace."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from small import machine
from update_rules import STEPS, prepared, trained

from pipeline.config import registry
from pipeline.runtime import environment
from pipeline.runtime.watchdog import Watchdog
from pipeline.training import autotune, distributed


@pytest.mark.parametrize("engine", registry.names("engines"))
@pytest.mark.parametrize("calls", [3, 5, 100])
def test_calls_of_any_length_are_the_same_steps(engine, calls):
    heard = []

    class Hear(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            heard.append(batch)

    options = {"epochs": 3, "steps": 2 * STEPS + 3, "optimizer": "adam", "optimizer_options": {}}
    single, _ = trained(calls=1, **options)
    several, batches = trained(calls=calls, engine=engine, callbacks=[Hear()], **options)
    for one, other in zip(single.variables, several.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    firsts = list(range(0, STEPS, calls))
    assert heard == [*firsts, *firsts, *range(0, 3, calls)]
    assert int(several.optimizer.iterations) == batches.last_step


def test_the_probe_leaves_no_trace_but_the_compiled_one():
    model, batches = prepared(model="sequential", optimizer="adam", optimizer_options={}, ema=0.9)
    model.step.set_inputs(batches, None)
    before = [v.numpy() for group in model.state.values() for v in group]
    seconds = autotune.seconds_per_step(model, batches)
    after = [v.numpy() for group in model.state.values() for v in group]
    assert 0 < seconds < 60 and len(model.step.compiled) == 1
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    trace = model.step.compiled["train"]
    decision = autotune.steps_per_call(model, "auto", batches, None)
    assert 1 <= model.steps_per_execution <= STEPS and str(model.steps_per_execution) in str(
        decision
    )
    assert distributed.Calls(model, "train", batches)._run is trace
    assert trace.experimental_get_tracing_count() == 1
    assert autotune.steps_per_call(model, 5, batches, None).reason.startswith("asked for")


@pytest.mark.parametrize(
    ("float32", "bfloat16", "steps", "chosen"),
    [
        (0.1, 0.05, 10_000, "mixed_bfloat16"),
        (0.1, 0.09, 10_000, "float32"),
        (0.1, 0.05, 10, "float32"),
    ],
)
def test_precision_is_chosen_by_what_it_gains(monkeypatch, float32, bfloat16, steps, chosen):
    monkeypatch.setattr(environment, "fast_precision", lambda: ("mixed_bfloat16", "it is there"))
    times = {"float32": float32, "mixed_bfloat16": bfloat16}
    monkeypatch.setattr(autotune, "seconds_per_step", lambda model, train: times[model.precision])

    def build(started):
        return SimpleNamespace(
            precision=started.precision, step=SimpleNamespace(set_inputs=lambda *a: 0)
        )

    train = SimpleNamespace(first_step=0, last_step=steps)
    watchdog = Watchdog(None, None)
    found, model = autotune.precision(machine(), build, train, None, watchdog)
    assert model.precision == found.precision == found.decisions[-1].value == chosen
    monkeypatch.setattr(environment, "fast_precision", lambda: (None, "no bfloat16"))
    found, _ = autotune.precision(machine(), build, train, None, watchdog)
    assert found.decisions[-1].reason == "no bfloat16"
