"""A sweep that is killed at ten moments is the sweep that is never killed."""

import json
import signal

import numpy as np
import pytest
from processes import run_module

optuna = pytest.importorskip("optuna", reason="pip install optuna")
WORDS = [
    "points.csv",
    "--train.epochs",
    "2",
    "--over",
    "train.learning-rate=1e-3..1e-1:log",
    "model.units=2,8",
    "--trials",
    "2",
]
MOMENTS = [
    ("ask", "before"),
    ("ask", "after"),
    ("suggest", "after"),
    ("start", "before"),
    ("start", "after"),
    ("report", "after"),
    ("tell", "before"),
    ("tell", "after"),
    ("start", "after"),
    ("end", "before"),
]


def read(folder):
    """Number, options and result of each trial."""
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(folder / "trials.log"))
    )
    trials = optuna.load_study(study_name="sweep", storage=storage).trials
    return [(t.number, t.params, t.state, t.value) for t in trials]


def test_no_trial_is_lost_or_run_twice(tmp_path):
    x = np.random.default_rng(0).normal(size=(120, 2))
    rows = [f"{a:.4f},{b:.4f},{'in' if a * a + b * b < 1 else 'out'}" for a, b in x]
    (tmp_path / "points.csv").write_text("\n".join(["a,b,label", *rows]))
    words = [*WORDS, "--directory", "killed"]
    for function, when in MOMENTS:
        done = run_module(
            "tests.nightly.killed_sweep",
            function,
            when,
            *words,
            cwd=tmp_path,
            fresh=True,
        )
        assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
        words = ["--resume", "killed"]
    assert (
        run_module("pipeline.sweep", *words, cwd=tmp_path, fresh=True).returncode == 0
    )
    words = [*WORDS, "--directory", "whole"]
    assert (
        run_module("pipeline.sweep", *words, cwd=tmp_path, fresh=True).returncode == 0
    )
    assert read(tmp_path / "killed") == read(tmp_path / "whole")
    for number in range(2):
        logs = []
        for name in ("killed", "whole"):
            lines = (tmp_path / name / f"trials/{number:03}/log.jsonl").read_text()
            logs.append([json.loads(line) for line in lines.splitlines()])
        assert [epoch["epoch"] for epoch in logs[0]] == [1, 2]
        for epochs in zip(*logs, strict=True):
            for name in ("loss", "val_loss", "val_accuracy"):
                assert epochs[0][name] == epochs[1][name]
