"""Configs as files and in Python: saved and loaded unchanged, invalid values refused by name."""

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
        {}, optional={"filters": st.integers(1), "momentum": st.floats(0, 1) | st.integers(0, 1)}
    ),
    patience=st.none() | st.integers(1, 9),
    directory=st.sampled_from(["a", "with space", "ümlaut/x=y", "-dash", "None"]),
)
def test_a_saved_config_is_loaded_unchanged(
    tmp_path, epochs, rate, size, padding, options, patience, directory
):
    config = configure([]).changed(
        train={"epochs": epochs, "learning_rate": rate, "patience": patience},
        data={"image_size": size, "augment": {"flip": {}, "crop": {"padding": padding}}},
        model={"options": options},
        export={"enabled": False, "directory": directory},
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.as_json()))
    again = read(path)
    assert again.as_json() == config.as_json()
    assert isinstance(again, Config) and again.digest() == config.digest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a JSON file"),
        ("[" * 100_000, "is not a JSON file"),
        ("[]", "is not a config"),
        ('{"source": {"name": "tfds", "options": {}}}', "tfds needs --source.dataset"),
        ('{"source": {"name": 5, "options": {}}}', "is not a config"),
    ],
)
def test_a_damaged_config_file_is_refused(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read(path)


INVALID = [
    ({"train": {"epoch": 3}}, "unknown option 'train.epoch'; did you mean 'epochs'"),
    ({"train": {"lr": 3}}, "unknown option 'train.lr'; did you mean 'learning_rate'"),
    ({"trian": {}}, "unknown option 'trian'; did you mean 'train'"),
    ({"train": {"epochs": "3"}}, "must be a whole number from 1 to 1,000,000,000; got '3'"),
    ({"train": {"epochs": True}}, "must be a whole number from 1 to 1,000,000,000; got True"),
    ({"train": {"batch_size": 2.5}}, "--train.batch-size must be a whole number"),
    ({"train": {"class_weight": {"a": True}}}, "--train.class-weight must be words of the form"),
    ({"train": {"class_weight": {"a\nb": "x"}}}, r"--train.class-weight must be words of the form"),
    ({"train": {"optimizer_options": {"a\u2028": 1}}}, r"-options a\u2028: adam has no option"),
    ({"train": {"freeze": ["a", 5]}}, "--train.freeze must be words"),
    ({"train": 3}, "--train must be a section; got 3"),
    ({"runtime": {"seed": None}}, "of at least 0 and below 2**31; got None"),
    ({"runtime": {"precision": "half"}}, "--runtime.precision must be one of auto, float32"),
    ({"export": {"batch_sizes": [8, None]}}, "must be values separated by commas"),
    ({"export": {"batch_sizes": []}}, "1 to 100 values; got ()"),
    ({"data": {"augment": {"crop": None}}}, "--data.augment must be"),
    ({"run_directory": 5}, "--run-directory must be"),
    ({"run_directory": "a\0b"}, "--run-directory must be a path in UTF-8"),
    ({"recipe": "../up"}, "--recipe must be a plain file name"),
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
