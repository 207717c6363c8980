"""Resuming a run with other options: each one is ignored, accepted with --force, or
refused.
"""

import pytest

from pipeline.data.epoch_order import EpochOrder
from pipeline.fit import fit
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils.errors import UsageError


def crash(*_, **__):
    raise OSError("crash")


def test_a_run_is_not_resumed_in_another_order(tmp_path, monkeypatch):
    def train():
        fit(
            "digits",
            data={"limit": 120},
            model={"name": "tiny", "options": {}},
            train={"epochs": 1, "steps_per_execution": 1, "checkpoint_steps": 1},
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
