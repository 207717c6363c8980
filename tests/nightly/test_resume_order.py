"""Resuming a run with other options: each one is ignored, accepted with --force, or
refused.
"""

import dataclasses

import pytest

from pipeline.config import registry
from pipeline.data.epoch_order import EpochOrder
from pipeline.fit import fit
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils.errors import UsageError


@pytest.fixture
def config(workplace):
    return registry.load("recipes", "digits")()


def fields_of(config):
    """Section ("" is the top level) -> names of its options."""
    found = {"": set()}
    for field in dataclasses.fields(config):
        part = getattr(config, field.name)
        if dataclasses.is_dataclass(part):
            found[field.name] = {inner.name for inner in dataclasses.fields(part)}
        else:
            found[""].add(field.name)
    return found


REGISTRIES = {
    "source.options": "sources",
    "task.options": "tasks",
    "model.options": "models",
}


def options(config):
    """(place, name) of every option, those of each registered function among them."""
    found = [
        (section, name)
        for section, names in fields_of(config).items()
        for name in names
    ]
    for place, registered in REGISTRIES.items():
        found.remove((place.removesuffix(".options"), "options"))
        functions = [
            registry.find(registered, name) for name in registry.names(registered)
        ]
        found += sorted(
            {(place, option) for function in functions for option in function.options}
        )
    return found


def crash(*_, **__):
    raise OSError("crash")


def test_a_run_is_not_resumed_in_another_order(tmp_path, monkeypatch):
    def train():
        fit(
            "digits",
            data={"limit": 120},
            model={"name": "tiny", "options": {}},
            train={"epochs": 1, "steps_per_call": 1, "checkpoint_steps": 1},
            runtime={"precision": "float32"},
            export={"enabled": False},
            run_directory=tmp_path / "run",
        )

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointCallback, "on_epoch_end", crash)
        with pytest.raises(OSError, match="crash"):
            train()
    with monkeypatch.context() as patch:
        patch.setattr(EpochOrder, "checksum", lambda self, epoch: 1)
        message = "the order of the examples has changed since the checkpoint"
        with pytest.raises(UsageError, match=message):
            train()
    train()
