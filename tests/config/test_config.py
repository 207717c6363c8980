"""Configs as files and in Python: saved and loaded unchanged, invalid values refused by name."""

import json

import pytest

from pipeline.config.command_line import configure, read
from pipeline.config.config import Config
from pipeline.utils.errors import UsageError


@pytest.mark.parametrize("directory", ["a", "with space", "ümlaut/x=y", "-dash", "None"])
def test_a_saved_config_is_loaded_unchanged(tmp_path, directory):
    config = configure([]).changed(
        train={"epochs": 10**6, "learning_rate": 1 / 3, "patience": None},
        data={"image_size": (3, 999), "augment": {"flip": {}, "crop": {"padding": 9}}},
        model={"options": {"filters": 5, "momentum": 1}},
        export={"enabled": False, "directory": directory},
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.as_json()))
    again = read(path)
    assert again.as_json() == config.as_json()
    assert isinstance(again, Config) and again.digest() == config.digest()


INVALID = [
    ({"train": {"epoch": 3}}, "unknown option 'train.epoch'; did you mean 'epochs'"),
    ({"trian": {}}, "unknown option 'trian'; did you mean 'train'"),
    ({"train": {"epochs": "3"}}, "must be a whole number from 1 to 1,000,000,000; got '3'"),
    ({"train": {"batch_size": 2.5}}, "--train.batch-size must be a whole number"),
    ({"train": {"class_weight": {"a": True}}}, "--train.class-weight must be words of the form"),
    ({"train": {"freeze": ["a", 5]}}, "--train.freeze must be words"),
    ({"train": 3}, "--train must be a section; got 3"),
    ({"runtime": {"seed": None}}, "of at least 0 and below 2**31; got None"),
    ({"runtime": {"precision": "half"}}, "--runtime.precision must be one of auto, float32"),
    ({"data": {"augment": {"crop": None}}}, "--data.augment must be"),
    ({"run_directory": "a\0b"}, "--run-directory must be a path in UTF-8"),
]


@pytest.mark.parametrize(("changes", "message"), INVALID, ids=lambda one: ascii(one)[:40])
def test_invalid_values_are_refused_in_python_and_in_a_file(tmp_path, changes, message):
    with pytest.raises(UsageError) as caught:
        configure([]).changed(**changes)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    path = tmp_path / "config.json"
    values = configure([]).as_json()
    for name, value in changes.items():
        nested = isinstance(value, dict) and name in values
        values[name] = {**values[name], **value} if nested else value
    path.write_text(json.dumps(values))
    with pytest.raises(UsageError) as caught:
        read(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


def test_the_digest_ignores_only_options_that_cannot_change_the_result(tmp_path):
    config = configure([])
    assert config.digest() == config.changed(run_directory=tmp_path).digest()
    assert config.digest() == config.changed(log={"progress": False}).digest()
    for change in ({"runtime": {"seed": 1}}, {"data": {"split_seed": 1}}, {"train": {"epochs": 1}}):
        assert config.digest() != config.changed(**change).digest()


@pytest.mark.parametrize("value", [{"": "x" * 10_000}, ["y" * 10_000], "/" + "z" * 10_000])
def test_a_long_value_is_shortened_in_the_message(value):
    with pytest.raises(UsageError, match="--recipe must be a plain file name; got ") as caught:
        configure([]).changed(recipe=value)
    assert len(str(caught.value)) < 300
