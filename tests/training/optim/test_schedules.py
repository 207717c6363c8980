"""Schedules against NumPy, and their common properties."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import registry
from pipeline.config.config import Config, Source, Train
from pipeline.utils.errors import UsageError

NAMES = registry.names("schedules")
OPTIONS = {
    "step": {"at": (0.2, 0.55), "factor": 0.3},
    "cosine": {"final": 0.1},
    "linear": {"final": 0.01},
    "polynomial": {"power": 3, "final": 0.02},
}


def rates(schedule, steps):
    """The rates of the first `steps` steps in float64."""
    return np.asarray(schedule(np.arange(steps)), np.float64) * np.ones(steps)


def reference(name, highest, steps, warmup=0.0, final=0.0, power=2.0, at=(0.5, 0.75), factor=0.1):
    """One step after the other with Python's floats."""
    listed = []
    for step in range(steps):
        first = warmup * steps
        left = 1 - min(max((step - first) / max(steps - first, 1), 0), 1)
        shape = {
            "constant": 1.0,
            "step": factor ** sum(step / steps >= share for share in at),
            "cosine": final + (1 - final) * np.cos(np.pi / 2 * (1 - left)) ** 2,
            "linear": final + (1 - final) * left,
            "polynomial": final + (1 - final) * left**power,
        }[name]
        listed.append(highest * shape * (min(1, (step + 1) / first) if first >= 1 else 1))
    return np.asarray(listed)


@pytest.mark.parametrize("steps", [1, 7, 390])
@pytest.mark.parametrize("warmup", [0, 0.03, 0.15])
@pytest.mark.parametrize("name", NAMES)
def test_schedules_equal_their_formulas(name, warmup, steps):
    schedule = registry.load("schedules", name)
    for options in ({}, OPTIONS.get(name, {})):
        found = rates(schedule(0.3, steps, warmup=warmup, **options), steps)
        wanted = reference(name, 0.3, steps, warmup, **options)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(NAMES),
    highest=st.floats(1e-6, 10),
    steps=st.integers(1, 2000),
    warmup=st.floats(0, 0.15),
)
def test_rates_rise_in_the_warm_up_and_never_after_it(name, highest, steps, warmup):
    found = rates(registry.load("schedules", name)(highest, steps, warmup=warmup), steps)
    first = int(warmup * steps)
    assert (found > 0).all() and found.max() <= highest * (1 + 1e-6)
    assert (np.diff(found[:first]) > 0).all()
    assert (np.diff(found[first + 1 :]) <= highest * 1e-6).all()


@pytest.mark.parametrize("options", [{"at": (0.5, 0.5)}, {"at": (0.7, 0.3)}, {"warmup": 0.6}])
def test_milestones_must_be_ascending_after_the_warm_up(options):
    with pytest.raises(
        UsageError, match="--train.schedule-options at=.* must be ascending and above warmup="
    ):
        registry.load("schedules", "step")(0.1, 100, **options)


def test_options_out_of_range_are_refused_by_name():
    for name, options in {
        "step": {"factor": 1.5},
        "linear": {"final": -1},
        "polynomial": {"power": -1},
        "cosine": {"warmup": 2},
    }.items():
        with pytest.raises(UsageError, match=f"{next(iter(options))} of {name} must be a number"):
            Train(schedule=name, schedule_options=options)


def test_milestones_survive_a_config_file():
    train = Train(schedule="step", schedule_options={"at": (0.5, 0.75)})
    config = Config(source=Source(options={"dataset": "x"}), train=train)
    values = json.loads(json.dumps(config.as_json()))
    again = config.changed(train=values["train"]).train.schedule_options
    schedule = registry.load("schedules", "step")
    found = rates(schedule(0.1, 50, **again), 50)
    np.testing.assert_array_equal(found, rates(schedule(0.1, 50), 50))
