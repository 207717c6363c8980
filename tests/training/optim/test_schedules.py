"""Schedules against NumPy, and what every one of them keeps to."""

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
    """One step after the other in Python's floats."""
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


@pytest.mark.parametrize("name", NAMES)
def test_schedules_start_high_warm_up_and_end(name):
    schedule = registry.load("schedules", name)
    plain, warmed = schedule(0.5, 100), schedule(0.5, 100, warmup=0.1)
    assert float(plain(0)) == pytest.approx(0.5)
    assert float(warmed(0)) == pytest.approx(0.05) and float(warmed(10)) == pytest.approx(0.5)
    end = {"constant": 0.5, "step": 0.005}.get(name, 0.0)
    assert float(plain(100)) == pytest.approx(end, abs=1e-7)
    assert float(warmed(100)) == pytest.approx(end, abs=1e-7)
    middle = {"constant": 0.5, "step": 0.05, "polynomial": 0.125}.get(name, 0.25)
    assert float(plain(50)) == pytest.approx(middle) and float(warmed(55)) == pytest.approx(middle)


@pytest.mark.parametrize("steps", [1, 7, 390])
@pytest.mark.parametrize("warmup", [0, 0.03, 0.15])
@pytest.mark.parametrize("name", NAMES)
def test_schedules_equal_their_formulas(name, warmup, steps):
    options = OPTIONS.get(name, {})
    schedule = registry.load("schedules", name)
    for given_options in ({}, options):
        found = rates(schedule(0.3, steps, warmup=warmup, **given_options), steps)
        wanted = reference(name, 0.3, steps, warmup, **given_options)
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


def test_linear_with_a_warm_up_is_the_triangle_of_one_cycle():
    found = rates(registry.load("schedules", "linear")(1.0, 80, warmup=0.25), 81)
    triangle = np.interp(np.arange(81), [-1, 19, 20, 80], [0, 1, 1, 0])
    np.testing.assert_allclose(found, triangle, atol=1e-6)


@pytest.mark.parametrize("options", [{"at": (0.5, 0.5)}, {"at": (0.7, 0.3)}, {"warmup": 0.6}])
def test_milestones_must_rise_after_the_warm_up(options):
    with pytest.raises(
        UsageError, match="--train.schedule-options at=.* must rise, from above warmup="
    ) as caught:
        registry.load("schedules", "step")(0.1, 100, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "step",
            {"at": 0.5},
            "at of step must be values separated by commas, each a number",
        ),
        ("step", {"at": (0.5, 2)}, "each a number from 0 to 1; got (0.5, 2)"),
        ("step", {"factor": 1.5}, "factor of step must be a number from 0 to 1"),
        ("linear", {"final": -1}, "final of linear must be a number from 0 to 1"),
        ("polynomial", {"power": -1}, "power of polynomial must be a number from 0 to 10"),
        ("cosine", {"warmup": 2}, "warmup of cosine must be a number from 0 to 1"),
    ],
)
def test_options_out_of_range_are_refused_by_name(name, options, message):
    with pytest.raises(UsageError) as caught:
        Train(schedule=name, schedule_options=options)
    assert message in str(caught.value)


def test_milestones_survive_a_config_file():
    train = Train(schedule="step", schedule_options={"at": (0.5, 0.75)})
    values = json.loads(
        json.dumps(Config(source=Source(options={"dataset": "x"}), train=train).as_json())
    )
    again = Config(source=Source(options={"dataset": "x"})).changed(train=values["train"])
    options = again.train.schedule_options
    schedule = registry.load("schedules", "step")
    np.testing.assert_array_equal(
        rates(schedule(0.1, 50, **options), 50), rates(schedule(0.1, 50), 50)
    )
