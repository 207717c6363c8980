"""`pipeline export`: a run's model again, without training; which version is
served.
"""

import errno
import functools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from damaged_files import flip
from exported_run import contents, predictions, trained_in

from pipeline.export import __main__
from pipeline.fit import main as fit_main
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils import temp_files

FILLED = [
    *(
        "digits",
        "--run-directory",
        "run",
        "--model.name",
        "tiny",
        "--data.limit",
        "300",
    ),
    *("--train.epochs", "2", "--train.checkpoint-steps", "1", "--log.no-tensorboard"),
]


def test_a_disk_that_stays_full_costs_neither_the_test_nor_the_weights(
    workplace, monkeypatch, tmp_path_factory, capsys
):
    """From the end of the second epoch on, no file can be created except in TMPDIR."""
    temporary = tmp_path_factory.mktemp("other")
    real_end = CheckpointCallback.on_epoch_end

    def full(real, parent):
        if Path(parent).absolute().is_relative_to(workplace):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(parent))
        return real(parent)

    def on_epoch_end(saver, epoch, logs):
        if epoch == 1:
            for name in ("folder", "file"):
                real = getattr(temp_files, name)
                patch.setattr(temp_files, name, functools.partial(full, real))
        real_end(saver, epoch, logs)

    with monkeypatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr(CheckpointCallback, "on_epoch_end", on_epoch_end)
        assert fit_main(FILLED) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("test       loss ") for line in lines)
    (kept,) = temporary.iterdir()
    assert f"once there is space: cp -r {kept}/. run" in "".join(lines)
    assert "next       once this is fixed: pipeline export run" in lines
    result = json.loads((kept / "result.json").read_text())
    assert result["test"]["accuracy"] >= 0 and result["export"] is None
    shutil.copytree(kept, "run", dirs_exist_ok=True)
    assert __main__.main(["run"]) == 0
    assert "trained for 12 of 12 steps" in capsys.readouterr().out
    after = json.loads(Path("run/result.json").read_text())
    assert (
        after["export"] == "saved_models/digits/1" and after["test"] == result["test"]
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return trained_in(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def place(trained, workplace):
    """A copy of it, as the current folder."""
    shutil.copytree(trained, workplace, dirs_exist_ok=True)
    return workplace


def test_an_interrupted_run_is_exported_from_its_newest_checkpoint(place, capsys):
    """As after a kill: no result, and steps that are left."""
    config = json.loads(Path("mine/config.json").read_text())
    config["train"]["epochs"] = 50
    Path("mine/config.json").write_text(json.dumps(config))
    Path("mine/result.json").unlink()
    newest = max(Path("mine/checkpoints").glob("step-*"))
    flip(newest / "state.index", 10)
    before = contents("mine")
    assert __main__.main(["mine"]) == 0
    said = capsys.readouterr().out
    assert "state.index is damaged; resuming from an older checkpoint" in said
    assert "steps (incomplete)" in said and "export     saved_models/digits/2" in said
    assert contents("mine") == before, "nothing of it is written: it is not over"
    probabilities = [
        predictions(f"saved_models/digits/{n}")["probabilities"] for n in (1, 2)
    ]
    assert np.abs(probabilities[0] - probabilities[1]).max() > 1e-4, "other weights"
