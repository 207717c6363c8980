"""Two replicas and two workers against one device and stock Keras."""

import json

import numpy as np
import pytest
from processes import REPOSITORY, run_python


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The output of `two_replicas.py`."""
    result = run_python(
        REPOSITORY / "tests/support/two_replicas.py", cwd=tmp_path_factory.mktemp("two")
    )
    assert result.stdout.startswith("{"), result.stderr[-3000:]
    return json.loads(result.stdout)


def test_updates_are_those_of_one_device(measured):
    """With clipping, accumulation, weight decay and L2; with synchronized batch
    normalisation; with a copy of the examples on each device. Muon's matrix products
    magnify rounding.
    """
    assert (
        measured["replicas"] == 2 and measured["muon"] <= 5e-5 and measured["planned"]
    )
    copies, distance = measured["device_cache"]
    assert distance <= 1e-5 and len(copies) == 2
    assert all(
        len(places) == 1 and places[0].endswith(name) for name, places in copies.items()
    )
    weights, statistics = measured["synchronized"]
    assert weights <= 1e-5 and statistics <= 1e-6


def test_replicas_get_the_same_examples_in_the_same_order(measured):
    """Augmented on the host or in the step, and prefetched to the device
    that computes.
    """
    assert measured["sample_order"] and measured["augmented"]
    assert len(measured["prefetched"]) == 5
    assert all(device.endswith("CPU:1") for device in measured["prefetched"])


def test_an_overflow_on_any_replica_skips_the_step_on_all(measured):
    """Weights, moving statistics and optimizer state of all copies are kept; the loss
    scale is halved if the loss is finite.
    """
    assert measured["overflows"] == [20, 20]


def test_statistics_and_metrics_do_not_depend_on_the_replicas(measured):
    """Those of bad steps and the norms; top-k accuracy, and macro recall, which is not
    a mean of parts.
    """
    one, two = measured["bad_steps"]
    assert one[:3] == two[:3] == [[1, 2], 2, 2 * 16]
    assert one[3:] == pytest.approx(two[3:], rel=1e-4) and np.isfinite(one[3:]).all()
    one, two = measured["metrics"]
    assert all(0 < value < 1 for values in one for value in values)
    np.testing.assert_allclose(one, two, rtol=1e-6)


def test_replicas_draw_different_dropout_masks(measured):
    replicas_differ, steps_differ, same_step_is_same = measured["dropout"]
    assert replicas_differ and steps_differ and same_step_is_same
