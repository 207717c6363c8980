"""Run directories: the next free number, one process at a time, and what may be resumed."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

from pipeline.config import registry
from pipeline.runtime import run_directory
from pipeline.training import preflight
from pipeline.utils.errors import UsageError


@pytest.fixture
def config(workplace):
    return registry.load("recipes", "digits")()


def begun(config, **changes):
    """The config of a run in the directory `mine`, which exists afterwards."""
    given = config.changed(run_directory="mine", **changes)
    with run_directory.opened(given):
        return given


def refused(config, message):
    before = sorted(os.walk("."))
    with pytest.raises(UsageError, match=message) as caught:
        preflight.check(config)
    assert sorted(os.walk(".")) == before and "\n" not in str(caught.value)


def test_runs_are_numbered(config):
    names = []
    for _ in range(3):
        preflight.check(config)
        with run_directory.opened(config) as run:
            names.append(str(run))
    assert names == ["runs/digits-1", "runs/digits-2", "runs/digits-3"]
    assert json.loads(Path("runs/digits-2/config.json").read_text()) == config.as_json()


def test_processes_that_start_together_never_share_a_directory_or_a_version(tmp_path):
    """Of several in one run directory one wins; the others report it, even after a killed one."""
    command = [sys.executable, str(REPOSITORY / "tests/support/races.py"), "12"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert process.returncode == 0, process.stderr
    found = json.loads(process.stdout)
    assert [len(race["told"]) for race in found["locks"]] == [2, 3, 4] * 4
    for race in found["locks"]:
        winners = [pid for pid, told in zip(race["pids"], race["told"], strict=True) if not told]
        assert len(winners) == 1, race
        for told in filter(None, race["told"]):
            who = rf"is in use by process {winners[0]} on {re.escape(socket.gethostname())} since "
            assert re.match(rf"locks/\d+ {who}20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\S*; wait", told)
    left = [bool(race["stale"]) for race in found["locks"]]
    assert left == [True, True, False] * 4, "only a killed holder leaves its name behind"
    assert sorted(found["runs"]) == [f"runs/digits-{n}" for n in range(1, 9)]
    assert sorted(found["versions"]) == [f"models/{n}" for n in range(1, 9)]
    published = [(tmp_path / f"models/{n}/saved_model.pb").read_text() for n in range(1, 9)]
    assert sorted(published) == sorted(map(str, range(8)))
    assert sorted(os.listdir(tmp_path / "models")) == [".published", *"12345678"]


def test_a_run_in_use_is_refused_before_anything_else(config, workplace):
    given = begun(config)
    path = workplace / "mine/.lock"
    with run_directory.opened(given):
        message = rf"mine is in use by process {os.getpid()} on .* since 20.*; wait until it"
        refused(given.changed(force=True), message)
        with pytest.raises(UsageError, match="in use"), run_directory.opened(given):
            pass
    assert path.read_text() == ""
    path.write_text("left by a killed process")
    preflight.check(given)
    with run_directory.opened(given):
        pass


@pytest.mark.parametrize("text", ["{", "null", "[1]", '{"source": 5}', "[" * 100_000, "{}"])
def test_a_run_with_a_damaged_config_is_refused(config, text):
    given = begun(config)
    Path("mine/config.json").write_text(text)
    refused(given, "mine/config.json is damaged")


@pytest.mark.parametrize("section", ["source", "data", "train"])
def test_a_section_that_is_not_an_object_is_damage(config, section):
    given = begun(config)
    path = Path("mine/config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), section: None}))
    refused(given, r"mine/config\.json is damaged")


@pytest.mark.parametrize("name", ["metadata.json", "splits.npz", "log.jsonl", "result.json"])
def test_a_directory_in_the_place_of_a_file_is_refused(config, name):
    given = begun(config)
    Path("mine", name).mkdir()
    refused(given, f"mine/{name} is not a file")


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_a_file_in_the_place_of_a_directory_is_refused(config, name):
    given = begun(config)
    Path("mine", name).write_text("mine")
    refused(given, f"mine/{name} is not a directory")


def test_checkpoints_without_the_metadata_of_the_run_are_refused(config):
    given = begun(config)
    Path("mine/checkpoints/step-00000003").mkdir(parents=True)
    refused(given, "mine has checkpoints but no metadata.json")


def test_the_pin_of_the_model_must_be_readable(config, workplace):
    target = workplace / "saved_models/digits"
    target.mkdir(parents=True)
    (target / "models.config").write_bytes(b"\xff")
    refused(config, r"digits/models\.config")
