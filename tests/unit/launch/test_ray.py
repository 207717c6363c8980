"""`pipeline.launch.ray`: what is refused before Ray starts. The runs on a local Ray are
in tests/nightly/test_ray_workers.py.
"""

import pickle
import sys

import numpy as np
import pytest

from pipeline.config import python_call
from pipeline.launch import ray
from pipeline.utils.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "epochs=... must be a whole number"),
        ({"workers": 0}, "workers must be a whole number from 1; got 0"),
        ({"workers": "2"}, "workers must be a whole number from 1; got '2'"),
        ({"folds": 3}, "workers=2, but folds=... trains in one"),
        ({"dry_run": True}, "dry_run=True needs no workers"),
        ({"worker": 2}, "unknown argument 'worker'"),
    ],
)
def test_a_wrong_argument_is_one_line(monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        ray.fit("digits", **arguments)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_without_ray_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "pipeline.launch.ray_training", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"needs the package ray: .*'\.\[ray\]'"):
        ray.fit("digits")
    assert not list(tmp_path.iterdir())


def test_a_request_keeps_its_objects_when_it_is_sent():
    """Their names, too, which a run compares when it is resumed."""
    data = (np.zeros((8, 4), np.float32), np.arange(8) % 2)
    request = python_call.request(None, {"model": "mlp", "data": data})
    sent = pickle.loads(pickle.dumps(request))
    assert sent == request
    x, y = sent.config.source.name.value
    np.testing.assert_array_equal(x, data[0])
    np.testing.assert_array_equal(y, data[1])
