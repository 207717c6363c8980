"""`pipeline.fit`, the module and its function."""

import random

import numpy as np
import pytest

import pipeline
from pipeline import fit
from pipeline.utils import random_states
from pipeline.utils.errors import UsageError


def test_the_module_is_called_as_its_function():
    for call in (fit, pipeline.fit, fit.fit):
        with pytest.raises(UsageError, match="unknown argument 'epoch'"):
            call(epoch=1)


def test_a_run_does_not_decide_what_its_caller_draws_afterwards():
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    with random_states.preserve():
        random.seed(7)
        np.random.seed(7)
    assert (random.random(), np.random.rand()) == expected
