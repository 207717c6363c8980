"""Every recipe returns a complete, valid Config that survives a file; its model can be
built; and a test trains it.
"""

import ast
import json

import numpy as np
import pytest
import recipe_cases
from input_target_pairs import examples_of, task_of
from processes import REPOSITORY

from pipeline.config import command_line, registry
from pipeline.config.config import Config
from pipeline.data.array_source import ArraySource
from pipeline.training import model_builder, preflight

RECIPES = registry.names("recipes")

FILES = {
    **{"photos": "1.jpg", "generation": "1.jpg"},
    **{"texts": "1.txt", "recordings": "1.wav"},
}

# Recipe -> the input and the target that it is for; of all others, images of classes.
PAIRS = {
    "boxes": ("image", "boxes"),
    "data": ("features", "classes"),
    "recordings": ("audio", "classes"),
    "regression_linear": ("features", "number"),
    "tables": ("table", "classes"),
    "texts": ("text", "classes"),
    "transcripts": ("audio", "transcript"),
}
# What the inputs of a pair would learn from their data.
LEARNED = {"rate": 8000, "seconds": 0.5, "units": ["a", "b"], "transcript_length": 4}
LEARNED |= {"vocabulary": ["a", "b"], "length": 8, "bytes": 40}


def write_data(folder):
    """Empty files that the recipe of the name of the folder is for."""
    if folder.name == "transcripts":
        (folder / "wavs").mkdir(parents=True)
        (folder / "wavs" / "1.wav").touch()
        (folder / "metadata.csv").write_text("path,transcript\nwavs/1.wav,one\n")
        return
    if folder.name == "tables":
        folder.mkdir()
        (folder / "a.csv").write_text("a,b,label\n1,2,x\n3,4,y\n")
        return
    if folder.name == "boxes":
        folder.mkdir()
        (folder / "1.jpg").touch()
        (folder / "data.yaml").write_text("names: [a]\ntrain: .\n")
        return
    for label in "ab":
        (folder / label).mkdir(parents=True)
        (folder / label / FILES.get(folder.name, "1.npy")).touch()


def words_of(name, workplace):
    """The words of `pipeline fit` for a recipe."""
    if name in command_line.OWN_DATA:  # takes its data from a directory of this name
        write_data(workplace / name)
    task = registry.find("recipes", name).options.get("task")
    return [name, *(["--task", ast.literal_eval(task.default)] if task else [])]


@pytest.mark.parametrize("name", RECIPES)
def test_a_valid_config_that_survives_a_file(name, workplace):
    words = words_of(name, workplace)
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


def task_for(name, config):
    """A task of the kind of a recipe, on examples of a few bytes."""
    given, wanted = PAIRS.get(name, ("image", "classes"))
    columns, names = examples_of(given, wanted, 4)
    if given == "image":
        columns["x"] = np.zeros((4, 32, 32, 3), np.uint8)
    info = ArraySource(columns, class_names=names).info
    if config.task.name == "supervised":
        return task_of(info, given, wanted).with_metadata(LEARNED)
    metadata = {"image_shape": [32, 32, 3], "class_names": list(names)}
    return registry.call("tasks", config.task.name, {}, metadata)


@pytest.mark.parametrize("name", RECIPES)
def test_the_model_of_a_recipe_can_be_built(name, workplace):
    config = command_line.configure(words_of(name, workplace))
    task = task_for(name, config)
    network = model_builder.network(task, config.model, "float32")
    assert network.count_params() > 0
    if task.target.output is not None:
        assert tuple(network.output.shape[1:]) == task.target.output.shape


def test_every_recipe_has_a_case():
    """A recipe that no test trains must get a row in recipe_cases.py."""
    cases = {**recipe_cases.ON_DIGITS, **recipe_cases.ELSEWHERE}
    assert set(cases) == set(RECIPES)
    for name, file in recipe_cases.ELSEWHERE.items():
        assert (REPOSITORY / "tests" / file).is_file(), name
