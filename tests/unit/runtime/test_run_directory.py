"""Run directories: the next free number, one process at a time, and what may be
resumed.
"""

import json
import os
from pathlib import Path

import pytest
from begun_run import begun

from pipeline.config import command_line, registry
from pipeline.runtime import run_directory
from pipeline.training import preflight
from pipeline.utils.errors import UsageError


@pytest.fixture
def config(workplace):
    return registry.load("recipes", "digits")()


def refused(config, message):
    before = sorted(os.walk("."))
    with pytest.raises(UsageError, match=message) as caught:
        preflight.check(config)
    assert sorted(os.walk(".")) == before and "\n" not in str(caught.value)


def test_runs_are_numbered(config):
    names = []
    for _ in range(3):
        preflight.check(config)
        with run_directory.open_run(config) as run:
            names.append(str(run))
    assert names == ["runs/digits-1", "runs/digits-2", "runs/digits-3"]
    assert json.loads(Path("runs/digits-2/config.json").read_text()) == config.as_json()


def test_a_run_in_use_is_refused_before_anything_else(config):
    given = begun(config)
    with run_directory.open_run(given):
        message = rf"mine is in use by process {os.getpid()} since 20.*; wait until it"
        refused(given.changed(force=True), message)
        with pytest.raises(UsageError, match="in use"), run_directory.open_run(given):
            pass
    preflight.check(given)
    with run_directory.open_run(given):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_run_with_a_damaged_config_is_refused(config, text):
    given = begun(config)
    Path("mine/config.json").write_text(text)
    refused(given, "mine/config.json is damaged")


@pytest.mark.parametrize("has_options", [True, False])
def test_a_run_of_an_earlier_version_is_refused(config, has_options):
    given = begun(config)
    values = given.as_json()
    del values["format"]
    if not has_options:  # the version before had other ones
        del values["data"]["limit"]
        values["train"]["rate"] = 0.1
    Path("mine/config.json").write_text(json.dumps(values))
    refused(given, "^mine was started by an earlier version; start it again in a new")
    with pytest.raises(UsageError, match="mine .*earlier version"):
        preflight.check(command_line.configure(["--resume", "mine"]))


def test_the_pin_of_the_model_must_be_readable(config, workplace):
    target = workplace / "saved_models/digits"
    target.mkdir(parents=True)
    (target / "models.config").write_bytes(b"\xff")
    refused(config, r"digits/models\.config")
