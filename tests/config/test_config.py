"""Configs as files and in Python: read back as they were, refused by name when damaged."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.config.command_line import configure, read
from pipeline.config.config import Config
from pipeline.utils.errors import UsageError


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    epochs=st.integers(1, 10**6),
    rate=st.floats(1e-9, 10),
    size=st.none() | st.tuples(st.integers(1, 999), st.integers(1, 999)),
    padding=st.integers(0, 9),
    options=st.fixed_dictionaries(
        {},
        optional={
            "filters": st.integers(1),
            "blocks": st.integers(1),
            "momentum": st.floats(0, 1) | st.integers(0, 1),
        },
    ),
    enabled=st.booleans(),
    patience=st.none() | st.integers(1, 9),
    directory=st.sampled_from(["a", "with space", "ümlaut/x=y", "-dash", "None"]),
)
def test_a_saved_config_reads_back_as_it_was(
    tmp_path, epochs, rate, size, padding, options, enabled, patience, directory
):
    config = configure([]).changed(
        train={"epochs": epochs, "learning_rate": rate, "patience": patience},
        data={"image_size": size, "augment": {"flip": {}, "crop": {"padding": padding}}},
        model={"options": options},
        export={"enabled": enabled, "directory": directory},
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.as_json()))
    again = read(path)
    assert again.as_json() == config.as_json()
    assert isinstance(again, Config) and again.digest() == config.digest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no JSON file"),
        ("{", "is no JSON file"),
        ("[]", "has no section 'source'"),
        ('{"source": {"name": "tfds"}}', "tfds needs --source.dataset"),
        ('{"source": {"nam": "tfds"}}', "unknown option 'source.nam'; did you mean 'name'"),
        ('{"source": {"name": 5}}', "--source.name must be one word, received 5"),
        ("[" * 100_000, "is no JSON file"),
    ],
)
def test_a_damaged_config_file_is_refused(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read(path)


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("train", {"epoch": 3}, "unknown option 'train.epoch'; did you mean 'epochs'"),
        ("train", {"lr": 3}, "unknown option 'train.lr'; did you mean 'learning_rate'"),
        (
            "train",
            {"epochs": "3"},
            "--train.epochs must be a whole number, from 1 to 1,000,000,000, received '3'",
        ),
        ("train", None, "--train must be a section, received None"),
        (
            "data",
            {"augment": {"crop": None}},
            "--data.augment must be words of the form name=value",
        ),
        ("recipe", "../up", "the recipe's name must be a plain file name"),
        ("recipe", "x" * 300, "the recipe's name must be a plain file name"),
        ("run_directory", "a\0b", "--run-directory must be a path in UTF-8"),
        ("trian", {}, "unknown option 'trian'; did you mean 'train'"),
    ],
)
def test_wrong_values_in_a_config_file_are_named(tmp_path, section, value, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**configure([]).as_json(), section: value}))
    with pytest.raises(UsageError) as caught:
        read(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train": {"epochs": "3"}},
            "--train.epochs must be a whole number, from 1 to 1,000,000,000, received '3'",
        ),
        (
            {"train": {"batch_size": 2.5}},
            "--train.batch-size must be a whole number, from 1 to 1,000,000,000, received 2.5",
        ),
        (
            {"runtime": {"seed": None}},
            "--runtime.seed must be a whole number, at least 0 and below 2**31, received None",
        ),
        (
            {"train": {"epochs": True}},
            "--train.epochs must be a whole number, from 1 to 1,000,000,000, received True",
        ),
        ({"train": {"class_weight": {"a": True}}}, "--train.class-weight a must be a number from"),
        ({"train": {"class_weight": {"a\nb": "x"}}}, r"--train.class-weight a\nb must be a number"),
        ({"train": {"optimizer_options": {"a\u2028": 1}}}, r"-options a\u2028: adam has no option"),
        ({"export": {"batch_sizes": [8, None]}}, "--export.batch-sizes must be values with commas"),
        ({"export": {"batch_sizes": [True]}}, "--export.batch-sizes must be values with commas"),
        ({"train": {"freeze": ["a", 5]}}, "--train.freeze must be values with commas"),
        (
            {"runtime": {"precision": "half"}},
            "--runtime.precision must be one of auto, float32",
        ),
        ({"data": {"augment": ["flip"]}}, "--data.augment must be words of the form name=value"),
        ({"train": 3}, "--train must be a section, received 3"),
        ({"run_directory": 5}, "--run-directory must be"),
    ],
)
def test_values_of_a_wrong_type_are_refused_in_python_too(changes, message):
    with pytest.raises(UsageError) as caught:
        configure([]).changed(**changes)
    assert message in str(caught.value)


def test_changed_names_an_unknown_option():
    with pytest.raises(UsageError, match=r"unknown option 'train.epoch'; did you mean 'epochs'"):
        configure([]).changed(train={"epoch": 3})
    with pytest.raises(UsageError, match="unknown option 'trian'"):
        configure([]).changed(trian={})


def test_the_digest_ignores_only_what_cannot_change_the_result(tmp_path):
    config = configure([])
    assert config.digest() == config.changed(run_directory=tmp_path).digest()
    assert config.digest() == config.changed(log={"progress": False}).digest()
    for change in ({"runtime": {"seed": 1}}, {"data": {"split_seed": 1}}, {"train": {"epochs": 1}}):
        assert config.digest() != config.changed(**change).digest()
