"""Every recipe returns a complete, valid Config that survives a file."""

import json

import pytest

from pipeline.config import command_line, registry
from pipeline.config.config import Config
from pipeline.training import preflight

RECIPES = registry.names("recipes")


@pytest.mark.parametrize("name", RECIPES)
def test_a_valid_config_that_survives_a_file(name, workplace):
    if name in command_line.OWN_DATA:  # takes its data from a directory of this name
        files = {"photos": "1.jpg", "texts": "1.txt", "recordings": "1.wav"}
        file = {**files, "transcripts": "1.wav"}.get(name, "1.npy")
        for label in "ab":
            folder = workplace / name / label
            folder.mkdir(parents=True)
            (folder / file).touch()
    config = command_line.recipe(name)
    assert isinstance(config, Config) and config.recipe == name
    assert config.run_directory is None and not config.dry_run and not config.force
    preflight.check(config)
    values = json.loads(json.dumps(config.as_json()))
    del values["format"]  # of a saved run
    again = command_line.recipe("digits").changed(**values)
    assert again.digest() == config.digest() and again.as_json() == config.as_json()
    changed = command_line.configure(
        [name, "--train.epochs", "3", "--runtime.seed", "7"]
    )
    assert changed == config.changed(train={"epochs": 3}, runtime={"seed": 7})
