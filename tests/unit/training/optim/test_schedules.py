"""Schedules against NumPy, and their common properties."""

import numpy as np
import pytest

from pipeline.config import registry

NAMES = registry.names("schedules")
OPTIONS = {
    "step": {"at": (0.2, 0.55), "factor": 0.3},
    "cosine": {"final": 0.1},
    "linear": {"final": 0.01},
}


def rates(schedule, steps):
    """The rates of the first `steps` steps in float64."""
    return np.asarray(schedule(np.arange(steps)), np.float64) * np.ones(steps)


def reference(name, highest, steps, warmup=0.0, final=0.0, at=(0.5, 0.75), factor=0.1):
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
        }[name]
        listed.append(
            highest * shape * (min(1, (step + 1) / first) if first >= 1 else 1)
        )
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
