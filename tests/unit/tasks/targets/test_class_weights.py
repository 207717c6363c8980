"""Class weights: which classes they name."""

import pytest

from pipeline.tasks.targets.class_weights import weights_by_name
from pipeline.utils.errors import UsageError


def test_class_weights_are_found_by_name_or_number():
    assert weights_by_name({"1": 2.0, "cat": 3.0}, ["cat", "dog"]) == {
        "dog": 2.0,
        "cat": 3.0,
    }
    assert weights_by_name({"1": 2.0}, ["1", "2"]) == {"1": 2.0}
    for weights, names, message in (
        (
            {"0": 2.0},
            ["1", "2"],
            "unknown class '0'",
        ),  # not the first one: names are numbers
        ({"2": 2.0}, ["cat", "dog"], "unknown class '2'"),
        ({"0": 2.0, "cat": 1.0}, ["cat", "dog"], "'cat' twice"),
    ):
        with pytest.raises(UsageError, match=message):
            weights_by_name(weights, names)
