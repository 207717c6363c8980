"""Run directories: the next free number, one process at a time, and what may be resumed."""

import json
import os
import re
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
    assert [len(race) for race in found["locks"]] == [2, 3, 4] * 4
    for race in found["locks"]:
        assert race.count(None) == 1, "one wins"
        for told in filter(None, race):
            assert re.match(r"locks/\d+ is in use by another process; wait", told)
    assert sorted(found["runs"]) == [f"runs/digits-{n}" for n in range(1, 9)]
    assert sorted(found["versions"]) == [f"models/{n}" for n in range(1, 9)]
    published = [(tmp_path / f"models/{n}/saved_model.pb").read_text() for n in range(1, 9)]
    assert sorted(published) == sorted(map(str, range(8)))
    assert sorted(os.listdir(tmp_path / "models")) == [".published", *"12345678"]


def test_a_run_in_use_is_refused_before_anything_else(config):
    given = begun(config)
    with run_directory.opened(given):
        message = "mine is in use by another process; wait until it"
        refused(given.changed(force=True), message)
        with pytest.raises(UsageError, match="in use"), run_directory.opened(given):
            pass
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


def test_the_pin_of_the_model_must_be_readable(config, workplace):
    target = workplace / "saved_models/digits"
    target.mkdir(parents=True)
    (target / "models.config").write_bytes(b"\xff")
    refused(config, r"digits/models\.config")
