"""A run with everything that is state, a way to stop it after a call, and what it comes
to.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.fit import fit
from pipeline.runtime.signals import ELSEWHERE, StopSignals
from pipeline.training import tensorboard
from pipeline.utils.errors import Terminated

# 8 steps an epoch, and one call of validation; everything that is state:
# dropout, Adam, averages, patience, a schedule.
CHANGES = {
    "data": {"limit": 200},
    "model": {"name": "sequential"},
    "train": {
        "epochs": 3, "batch_size": 16, "optimizer": "adam", "learning_rate": 0.002, "ema": 0.9,
        "patience": 5, "schedule": "cosine", "steps_per_execution": 2,
    },
    "export": {"enabled": False},
}  # fmt: skip


def changes(**sections):
    return {name: {**CHANGES.get(name, {}), **sections.get(name, {})} for name in
            {**CHANGES, **sections}}  # fmt: skip


def stop_after(patch, calls):
    """Ends training with this call; those of training and of validation count."""
    left = [calls]

    def reason(self, agreed=float):
        left[0] -= 1
        return ELSEWHERE if left[0] == 0 else None

    patch.setattr(StopSignals, "reason", reason)


def everything(run, folder):
    """What must be equal, bit by bit: not the times."""
    groups = run.network.state.values()
    state = [variable.numpy() for group in groups for variable in group]
    history = {n: v for n, v in run.history.items() if n != "examples_per_second"}
    clocks = ("seconds", "examples_per_second")
    lines = [
        json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()
    ]
    log = [{n: v for n, v in line.items() if n not in clocks} for line in lines]
    return state, history, log, scalars(folder), run.test


def scalars(folder):
    found = []
    for part in sorted(folder.glob("tensorboard/*")):
        for step, tag, number in tensorboard.read_scalars(part):
            if tag.startswith("epoch_") and "examples_per_second" not in tag:
                found.append((part.name, tag, step, number))
    return found


def require_equal(one, other):
    for left, right in zip(one[0], other[0], strict=True):
        np.testing.assert_array_equal(left, right)
    assert one[1:] == other[1:]


def on_two_replicas():
    """Both engines, stopped within the first epoch and in its validation."""
    given = changes(runtime={"replicas": 2})
    whole = everything(fit("digits", run_directory="whole", **given), Path("whole"))
    for engine in ("model_fit", "gradient_tape"):
        given["train"]["engine"] = engine
        for calls in (3, 2):
            with pytest.MonkeyPatch.context() as patch, pytest.raises(Terminated):
                stop_after(patch, calls)
                fit("digits", run_directory=engine, **given)
        require_equal(
            everything(fit("digits", run_directory=engine, **given), Path(engine)),
            whole,
        )
    print("2 of 2")


if __name__ == "__main__":
    sys.exit(on_two_replicas())
