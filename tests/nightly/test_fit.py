"""Training as a user meets it: the command, a dry run, repeated commands, errors."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.config.command_line import configure
from pipeline.fit import fit
from pipeline.serving import repository

QUICK = {
    "train": {"epochs": 1, "batch_size": 16},
    "data": {"limit": 200},
    "model": {"name": "tiny"},
    "export": {"enabled": False},
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A run of one epoch; tests must not change it."""
    return fit("digits", **QUICK, run_directory=tmp_path_factory.mktemp("quick"))


def test_a_saved_config_starts_an_identical_run(quick, workplace):
    one, other = (
        quick,
        fit(configure(["--config", str(quick.directory / "config.json")])),
    )
    assert str(other.directory) == "runs/digits-1"
    assert one.result["config_digest"] == other.result["config_digest"]
    assert one.history["loss"] == other.history["loss"] and one.test == other.test
    for a, b in zip(one.model.get_weights(), other.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_run_is_continued_with_more_epochs_if_forced(quick, workplace, capsys):
    shutil.copytree(quick.directory, "mine")
    longer = {
        **QUICK,
        "train": {**QUICK["train"], "epochs": 2},
        "run_directory": "mine",
    }
    assert fit("digits", **longer, force=True).result["epochs"] == 2
    assert "--train.epochs 1, now 2 (--force)" in capsys.readouterr().out
    assert len(Path("mine/log.jsonl").read_text().splitlines()) == 2


def test_without_held_out_splits_and_export(workplace):
    run = fit("digits", **{**QUICK, "data": {"validation": 0, "test": 0, "limit": 200}})
    assert run.test == run.result["train"] and "val_loss" not in run.history
    assert run.export is None and run.result["verification"] is None
    assert sorted(os.listdir()) == ["runs"]


def test_a_failed_check_ends_with_code_1(workplace, monkeypatch, capsys):
    from pipeline.export import proof
    from pipeline.fit import main

    monkeypatch.setattr(proof, "write_golden", _write_wrong_golden(proof.write_golden))
    words = (
        "--model.name tiny --data.limit 200 --train.epochs 1 --log.no-progress"
        " --log.no-tensorboard"
    )
    assert main(words.split()) == 1
    shown = capsys.readouterr().out
    assert "FAILED     predictions serving_default: probabilities: differs by" in shown
    assert "NOT published" in shown
    assert not repository.versions(Path("saved_models/digits"))
    assert all(
        path.name.startswith(".") for path in Path("saved_models/digits").iterdir()
    )
    assert json.loads(Path("runs/digits-1/result.json").read_text())["export"] is None


def _write_wrong_golden(real):
    def write(path, golden):
        golden["serving_default"]["outputs"]["probabilities"] += 2e-5
        real(path, golden)

    return write
