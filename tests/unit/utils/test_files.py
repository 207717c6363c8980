"""Atomic writes, temporary files and locks: what a killed process left is removed,
nothing else.
"""

import json
import os
import signal
from pathlib import Path

import pytest

from pipeline.config import registry
from pipeline.runtime import run_directory
from pipeline.utils import files, temp_files


def abandoned(*places):
    """Leaves unfinished work in some directories, as a killed process does."""
    child = os.fork()
    if child == 0:
        for place in map(Path, places):
            (temp_files.folder(place) / "variables").mkdir()
            temp_files.file(place).write_text("{")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_only_the_work_of_killed_processes_is_swept(tmp_path):
    foreign = [".unpublished-x", f".unpublished-{'0' * 31}g", "notes.txt", ".hidden"]
    for name in foreign:
        (tmp_path / name).write_text(name)
    mine = [temp_files.folder(tmp_path), temp_files.file(tmp_path)]
    abandoned(tmp_path)
    temp_files.sweep(tmp_path)
    assert len(os.listdir(tmp_path)) == len(foreign) + len(mine)
    assert all(path.exists() for path in mine)
    for path in mine:
        temp_files.remove(path)
    assert sorted(os.listdir(tmp_path)) == sorted(foreign)
    temp_files.sweep(tmp_path / "nowhere")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device: '.*/x.json'"):
        files.write_text(path, "new")
    assert json.loads(path.read_text()) == {"a": 1} and os.listdir(tmp_path) == [
        "x.json"
    ]


def test_the_next_start_of_a_run_removes_what_a_killed_one_left(workplace):
    config = registry.load("recipes", "digits")().changed(run_directory="mine")
    with run_directory.open_run(config) as run:
        run.checkpoints.mkdir()
    models = Path("saved_models/digits")
    models.mkdir(parents=True)
    other = temp_files.folder(
        models
    )  # of another run, which exports to the same directory
    abandoned(run.path, run.checkpoints, models)
    with run_directory.open_run(config):
        pass
    assert sorted(os.listdir("mine")) == [".lock", "checkpoints", "config.json"]
    assert os.listdir(run.checkpoints) == [] and os.listdir(models) == [other.name]
    temp_files.remove(other)
