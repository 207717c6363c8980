"""Regression against what it must equal: closed-form least squares, NumPy, finite
differences.
"""

import re

import diabetes_table
import fake_serving
import numpy as np
import pytest


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return diabetes_table.run(tmp_path_factory.mktemp("regression"))


@pytest.fixture(scope="module")
def ports(run):
    with fake_serving.both(fake_serving.Backend(regression_linear=run.export)) as ports:
        yield ports


@pytest.mark.parametrize("way", fake_serving.WAYS)
def test_the_examples_of_the_serving_page_work_as_they_stand(run, ports, way, capsys):
    document = (run.export.parent / "SERVING.md").read_text()
    shown = fake_serving.shown(document, "serving_default", way, ports, capsys)
    features = np.zeros((1, 10), np.float32)
    (number,) = re.findall(r"-?\d+\.\d+", shown)
    assert float(number) == pytest.approx(
        run.predict(features=features)["prediction"][0], rel=1e-4
    )
