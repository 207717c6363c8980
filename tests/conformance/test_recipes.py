"""Every recipe: a complete, valid Config of its own name that survives a file."""

import json

import pytest
from siblings import require_described

from pipeline.config import command_line, registry
from pipeline.config.config import Config
from pipeline.training import preflight

RECIPES = registry.names("recipes")


@pytest.mark.parametrize("name", RECIPES)
def test_described(name):
    require_described("recipes", name)


@pytest.mark.parametrize("name", RECIPES)
def test_a_config_of_its_own_name(name, workplace):
    config = command_line.recipe(name)
    assert isinstance(config, Config) and config.recipe == name
    assert config.run_directory is None and not config.dry_run and not config.force
    preflight.check(config)


@pytest.mark.parametrize("name", RECIPES)
def test_survives_a_file(name):
    config = command_line.recipe(name)
    values = json.loads(json.dumps(config.as_json()))
    again = command_line.recipe("digits").changed(**values)
    assert again.digest() == config.digest() and again == config


@pytest.mark.parametrize("name", RECIPES)
def test_words_of_a_command_line_change_it(name):
    config = command_line.configure([name, "--train.epochs", "3", "--runtime.seed", "7"])
    changed = command_line.recipe(name).changed(train={"epochs": 3}, runtime={"seed": 7})
    assert config == changed
