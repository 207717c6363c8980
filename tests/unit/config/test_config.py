"""Configs as files and in Python: saved and loaded unchanged, invalid values refused by
name.
"""

import json

import numpy as np
import pytest

from pipeline.config.command_line import configure, read
from pipeline.config.config import Config
from pipeline.utils import files
from pipeline.utils.errors import UsageError


@pytest.mark.parametrize(
    "directory", ["a", "with space", "ümlaut/x=y", "-dash", "None"]
)
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
    ({"train": {"epoch": 3}}, "'train.epoch'; .*'epochs'"),
    ({"trian": {}}, "'trian'; .*'train'"),
    ({"train": {"epochs": "3"}}, "epochs must be a whole number .*; got '3'"),
    ({"train": {"batch_size": 2.5}}, "--train.batch-size must be a whole number"),
    (
        {"train": {"class_weight": {"a": True}}},
        "--train.class-weight .*balanced or words",
    ),
    ({"train": {"freeze": ["a", 5]}}, "--train.freeze must be words"),
    ({"train": 3}, "--train must be a section .*; got 3"),
    ({"runtime": {"seed": None}}, r"below 2\*\*31; got None"),
    ({"runtime": {"precision": "half"}}, "--runtime.precision .*auto, float32"),
    ({"data": {"augment": {"crop": None}}}, "--data.augment must be"),
    ({"run_directory": "a\0b"}, "--run-directory must be a path in UTF-8"),
]


@pytest.mark.parametrize(
    ("changes", "message"), INVALID, ids=lambda one: ascii(one)[:40]
)
def test_invalid_values_are_refused_in_python_and_in_a_file(tmp_path, changes, message):
    with pytest.raises(UsageError, match=message) as caught:
        configure([]).changed(**changes)
    assert "\n" not in str(caught.value)
    path = tmp_path / "config.json"
    values = configure([]).as_json()
    for name, value in changes.items():
        nested = isinstance(value, dict) and name in values
        values[name] = {**values[name], **value} if nested else value
    path.write_text(json.dumps(values))
    with pytest.raises(UsageError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_the_digest_ignores_only_options_that_cannot_change_the_result(tmp_path):
    config = configure([])
    assert config.digest() == config.changed(run_directory=tmp_path).digest()
    assert config.digest() == config.changed(log={"progress": False}).digest()
    for change in (
        {"runtime": {"seed": 12345}},
        {"data": {"split_seed": 1}},
        {"train": {"epochs": 1}},
    ):
        assert config.digest() != config.changed(**change).digest()


def test_class_weights_may_have_the_keys_and_numbers_of_numpy():
    for weights in (
        {0: 1, 1: 2.5},
        {np.int64(0): np.float32(1), np.int64(1): np.float64(2.5)},
        {0.0: np.int64(1), 1.0: 2.5},
        {False: 1.0, True: 2.5},
    ):
        train = configure([]).changed(train={"class_weight": weights}).train
        assert train.class_weight == {"0": 1.0, "1": 2.5}
    named = configure([]).changed(
        train={"class_weight": {np.str_("cat"): np.float64(2)}}
    )
    assert json.loads(json.dumps(named.as_json()))["train"]["class_weight"] == {
        "cat": 2.0
    }


def test_without_a_home_directory_the_cache_is_among_the_temporary_files(
    monkeypatch, tmp_path
):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for home, folder in (
        (str(tmp_path), tmp_path / ".cache/pipeline"),
        ("~", None),
        ("x", None),
    ):
        monkeypatch.setenv("HOME", home)
        found = configure([]).data.cache_folder
        assert found == (folder or files.temporary_home() / "cache")
        assert found.is_absolute()


@pytest.mark.parametrize(
    "value", [{"": "x" * 10_000}, ["y" * 10_000], "/" + "z" * 10_000]
)
def test_a_long_value_is_shortened_in_the_message(value):
    with pytest.raises(UsageError, match="--recipe.*plain file name") as caught:
        configure([]).changed(recipe=value)
    assert len(str(caught.value)) < 300
