"""Every recipe returns a complete, valid Config that survives a file."""

import ast
import json

import pytest

from pipeline.config import command_line, registry
from pipeline.config.config import Config
from pipeline.training import preflight

RECIPES = registry.names("recipes")

FILES = {
    **{"photos": "1.jpg", "generation": "1.jpg"},
    **{"texts": "1.txt", "recordings": "1.wav"},
}


def write_data(folder):
    """Empty files that the recipe of the name of the folder is for."""
    if folder.name == "transcripts":
        (folder / "wavs").mkdir(parents=True)
        (folder / "wavs" / "1.wav").touch()
        (folder / "metadata.csv").write_text("path,transcript\nwavs/1.wav,one\n")
        return
    if folder.name == "boxes":
        folder.mkdir()
        (folder / "1.jpg").touch()
        (folder / "data.yaml").write_text("names: [a]\ntrain: .\n")
        return
    for label in "ab":
        (folder / label).mkdir(parents=True)
        (folder / label / FILES.get(folder.name, "1.npy")).touch()


@pytest.mark.parametrize("name", RECIPES)
def test_a_valid_config_that_survives_a_file(name, workplace):
    if name in command_line.OWN_DATA:  # takes its data from a directory of this name
        write_data(workplace / name)
    words = [name]
    if task := registry.find("recipes", name).options.get("task"):
        words += ["--task", ast.literal_eval(task.default)]
    config = command_line.configure(words)
    assert isinstance(config, Config) and config.recipe == name
    assert config.run_directory is None and not config.dry_run and not config.force
    preflight.check(config)
    values = json.loads(json.dumps(config.as_json()))
    del values["format"]  # of a saved run
    again = command_line.recipe("digits").changed(**values)
    assert again.digest() == config.digest() and again.as_json() == config.as_json()
    words += ["--train.epochs", "3", "--runtime.seed", "7"]
    changed = command_line.configure(words)
    assert changed == config.changed(train={"epochs": 3}, runtime={"seed": 7})
