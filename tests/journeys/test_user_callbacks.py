"""Callbacks of the user, in addition to those of every run."""

import pytest

from pipeline.config import registry
from pipeline.fit import fit
from pipeline.training import preflight
from pipeline.utils.errors import UsageError


def options(**callbacks):
    train = {"epochs": 3, "batch_size": 16, "steps_per_call": 2}
    return {
        "data": {"limit": 100},
        "model": {"name": "tiny"},
        "export": {"enabled": False},
        "log": {"progress": False, "tensorboard": False},
        "train": {**train, "callbacks": callbacks},
    }


def test_one_of_every_run_is_refused_before_anything_is_written(workplace):
    for name in (*preflight.BEFORE_CHECKPOINT, *preflight.AFTER_CHECKPOINT):
        assert name in registry.names("callbacks")
        with pytest.raises(UsageError) as caught:
            fit("digits", **options(**{name: {}}))
        assert (
            str(caught.value)
            == f"callbacks=...: {name} is part of every run; remove it"
        )
    assert not list(workplace.iterdir())
