"""The metrics of an export and of its run on the same data."""

from pathlib import Path

import keras
import pytest

from pipeline.evaluation import labelled_data
from pipeline.report.evaluation import Evaluation


def require_equal(run, data, left_out=()):
    """The evaluation of the export, whose metrics are those of the run but these."""
    evaluation = Evaluation.of(
        labelled_data.evaluate_export(run.export, Path(data), None)
    )
    expected = run.evaluate(data).metrics
    assert expected.keys() - evaluation.metrics.keys() == set(left_out)
    for name, value in evaluation.metrics.items():
        pairs = zip(
            keras.tree.flatten(value), keras.tree.flatten(expected[name]), strict=True
        )
        for found, wanted in pairs:
            is_number = isinstance(wanted, float)
            assert found == (pytest.approx(wanted, abs=1e-5) if is_number else wanted)
    assert len(evaluation) == expected["examples"]
    return evaluation
