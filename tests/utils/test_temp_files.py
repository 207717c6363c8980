"""Unfinished work: the dead's is swept, the living's and everybody else's is never touched."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import REPOSITORY

from pipeline.config import registry
from pipeline.runtime import run_directory
from pipeline.training import preflight
from pipeline.utils import files, temp_files

# Makes unfinished work in every way, says so, and waits to be killed.
MAKER = """
import sys, time
from pathlib import Path
from pipeline.utils import temp_files
for place in map(Path, sys.argv[1:]):
    folder = temp_files.folder(place)
    (folder / "variables").mkdir()
    (folder / "variables/data").write_bytes(b"half" * 1000)
    temp_files.file(place).write_text("{")
print("made", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def maker():
    """Starts a process that is making something in some folders."""
    started = []

    def start(*places):
        command = [sys.executable, "-c", MAKER, *map(str, places)]
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout.readline() == b"made\n"
        return process

    yield start
    for process in started:
        kill(process)
        process.stdin.close()
        process.stdout.close()


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait(60)


def foreign(place, hidden=False):
    """Plants what others might have put there; names that look like ours are among them."""
    outside = place.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "precious").write_text("mine")
    digits = "0123456789abcdef"
    seal = temp_files._digest(digits)
    for name in (
        *("notes.txt", ".hidden", ".config.json.1a2b3c4d", ".unpublished", ".unpublished-"),
        *(".unpublished-x", f".unpublished-{digits}", f".unpublished-{digits}{digits}"),
        *(f".unpublished-{digits}{seal}0", f".unpublished-{digits}{seal}.txt"),
        *(f"unpublished-{digits}{seal}", f".unpublished-{digits.upper()}{seal}"),
        *(f".unpublished-{digits[::-1]}{seal}", "birds-train-0.building-old"),
    ):
        if name.startswith(".") or not hidden:
            (place / name).write_text(name)
    folder = place / f".unpublished-{digits}-folder"
    folder.mkdir()
    (folder / "inner").write_text("mine")
    # Even a name that passes leads nowhere if it is a link or a pipe.
    (place / temp_files._name()).symlink_to(outside)
    os.mkfifo(place / temp_files._name())
    return place, outside


def contents(*places):
    """Path -> kind and sha256 of everything below."""
    found = {}
    for place in places:
        for path in sorted(place.rglob("*")):
            plain = path.is_file() and not path.is_symlink()
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if plain else None
            changed = None if path.is_dir() else path.lstat().st_mtime_ns
            found[str(path)] = (path.lstat().st_mode, changed, digest)
    return found


def test_only_the_work_of_the_dead_is_swept(tmp_path, maker):
    place = tmp_path / "shared"
    place.mkdir()
    before = contents(*foreign(place))
    living, dead = maker(place), maker(place)
    mine = [temp_files.folder(place), temp_files.file(place)]
    assert len(contents(place)) == len(before) - 1 + 4 + 4 + 2
    assert temp_files.sweep(place) == []
    kill(dead)
    assert len(temp_files.sweep(place)) == 2
    assert all(path.exists() for path in mine) and living.poll() is None
    kill(living)
    assert len(temp_files.sweep(place)) == 2
    for path in mine:
        temp_files.remove(path)
    assert contents(place, place.parent / "outside") == before


def test_foreign_files_survive_a_thousand_sweeps_of_random_names(tmp_path):
    generator = np.random.default_rng(3)
    for _ in range(1000):
        text = "".join(generator.choice(list("0123456789abcdef"), 32))
        (tmp_path / f".unpublished-{text}").write_text(text)
    before = contents(tmp_path)
    assert temp_files.sweep(tmp_path) == [] and contents(tmp_path) == before


def test_where_there_is_nothing_nothing_is_swept(tmp_path):
    assert temp_files.sweep(tmp_path / "nowhere") == []
    (tmp_path / "file").touch()
    assert temp_files.sweep(tmp_path / "file") == []


def test_a_disk_without_locks_keeps_everything(tmp_path, monkeypatch):
    """There nobody knows whether the maker lives."""

    def refuse(handle, operation):
        raise OSError("no locks here")

    path = temp_files.folder(tmp_path)
    temp_files.release(path)
    monkeypatch.setattr(temp_files.fcntl, "flock", refuse)
    other = temp_files.file(tmp_path)
    temp_files.release(other)
    assert temp_files.sweep(tmp_path) == [] and path.is_dir() and other.is_file()
    monkeypatch.undo()
    assert sorted(temp_files.sweep(tmp_path)) == sorted([path, other])


def test_what_was_published_is_nobodys_leftover(tmp_path):
    folder = temp_files.folder(tmp_path / "m")
    (folder / "saved_model.pb").touch()
    version = files.publish(folder, tmp_path / "m")
    other = temp_files.folder(tmp_path)
    files.publish_as(other, tmp_path / "step-1")
    files.write_text(tmp_path / "x.json", "{}")
    opened = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        files.write_text(tmp_path / "x.json", "{}")
        temp_files.remove(temp_files.folder(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == opened, "handles stay open"
    temp_files.sweep(tmp_path), temp_files.sweep(tmp_path / "m")
    assert version.is_dir() and sorted(os.listdir(tmp_path)) == ["m", "step-1", "x.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    files.write_text(path, "old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_text(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["x.json"]


def test_what_is_removed_is_gone_at_once_even_if_the_removal_is_cut_short(tmp_path, monkeypatch):
    folder = tmp_path / "step-00000007"
    folder.mkdir()
    (folder / "state").touch()
    monkeypatch.setattr(temp_files.shutil, "rmtree", lambda *_, **__: None)  # killed meanwhile
    temp_files.remove(folder)
    (left,) = os.listdir(tmp_path)
    monkeypatch.undo()
    assert temp_files.is_ours(left) and [p.name for p in temp_files.sweep(tmp_path)] == [left]


def test_the_next_start_of_a_run_tidies_up(workplace, maker):
    config = registry.load("recipes", "digits")().changed(run_directory="mine")
    with run_directory.opened(config) as run:
        run.checkpoints.mkdir()
    models = Path("saved_models/digits")
    models.mkdir(parents=True)
    places = (run.path, run.checkpoints, models)
    before = contents(
        *(found for place in places for found in foreign(place, hidden=place is models))
    )
    living = maker(models)  # another run, which exports to the same place
    others = contents(models)
    kill(maker(*places))
    preflight.check(config)
    with run_directory.opened(config):
        pass
    for path in (run.config, run.path / ".lock"):  # written by every start
        before.pop(str(path), None)
    now = contents(*places, Path("outside"), Path("mine/outside"), Path("saved_models/outside"))
    assert {name: now.get(name) for name in before} == before
    assert contents(models) == others and living.poll() is None
    assert temp_files.sweep(run.path) == temp_files.sweep(run.checkpoints) == []


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.long)])
def test_the_disk_does_not_fill_and_nothing_foreign_is_touched_over_many_kills(workplace, count):
    """Starts in one run directory, each killed with SIGKILL at some moment of its work."""
    places = [Path("killed/checkpoints"), Path("saved_models/digits")]
    planted = [found for place in places for found in _planted(place)]
    before = contents(*planted)
    with run_directory.opened(registry.load("recipes", "digits")().changed(run_directory="begun")):
        pass
    Path("begun/config.json").rename("killed/config.json")
    command = [sys.executable, str(REPOSITORY / "tests/support/races.py"), "0", str(count)]
    process = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert process.returncode == 0, process.stderr
    found = json.loads(process.stdout)["cycles"]
    # A canary of each kind in both places bears our mark: a link and a pipe.
    assert len(found["left"]) == 4 and 4 < found["most"] <= 4 + 3, found
    assert found["torn"] == [] and 1 <= found["kept"] <= 3
    now = contents(*planted)
    assert {name: now.get(name) for name in before} == before


def _planted(place):
    place.mkdir(parents=True)
    return foreign(place, hidden=True)


def test_a_temporary_folder_is_gone_at_the_end_and_so_is_that_of_the_dead(
    tmp_path, monkeypatch, maker
):
    monkeypatch.setattr(temp_files.tempfile, "gettempdir", lambda: str(tmp_path))
    kill(maker(tmp_path))
    (tmp_path / "foreign").touch()
    with temp_files.temporary() as folder:
        assert sorted(os.listdir(tmp_path)) == sorted([folder.name, "foreign"])
        (folder / "x").touch()
    assert os.listdir(tmp_path) == ["foreign"]
