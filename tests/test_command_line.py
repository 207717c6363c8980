"""Words and files to a Config: defaults, hints, exit codes, and no TensorFlow on the way."""

import json
import subprocess
import sys

import pytest
from conftest import REPOSITORY, run_module
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import shelf
from pipeline.command_line import configure, read
from pipeline.config import Config, Source
from pipeline.errors import UsageError


def test_without_words_the_recipe_is_digits():
    assert configure([]) == shelf.take("recipes", "digits")()


def test_words_change_the_recipe():
    config = configure(
        [
            "cifar10_convnet",
            "--train.epochs",
            "3",
            "--data.augment",
            "flip",
            "crop",
            "padding=2",
            "fill=reflect",
            "--model.options",
            "filters=8",
            "--export.no-enabled",
            "--train.batch-size=64",
        ]
    )
    assert (config.recipe, config.train.epochs, config.train.batch_size) == (
        "cifar10_convnet",
        3,
        64,
    )
    assert config.data.augment == {"flip": {}, "crop": {"padding": 2, "fill": "reflect"}}
    assert config.model.options == {"filters": 8}
    assert not config.export.enabled


def test_another_sibling_does_not_inherit_the_options_of_the_first():
    config = configure(["cifar10_convnet", "--train.optimizer", "adam"])
    assert config.train.optimizer_options == {}
    same = configure(["cifar10_convnet", "--train.optimizer=sgd"])
    assert same.train.optimizer_options == {"momentum": 0.9}
    changed = configure([]).changed(source={"name": "tfds", "dataset": "mnist"})
    assert changed.source == Source(name="tfds", dataset="mnist")


def test_a_new_source_name_drops_the_old_data_set(npz):
    config = configure(["digits", "--source.name", "arrays", "--source.path", str(npz())])
    assert config.source.dataset is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("digit", "unknown recipe 'digit'; did you mean 'digits'"),
        ("--model.name convnt", "did you mean 'convnet'"),
        ("--model.options depth=3", "convnet has no option 'depth'"),
        ("--data.augment flp", "did you mean 'flip'"),
        ("--data.augment crop pad=3", "did you mean 'padding'"),
        ("--train.optimizer sgdd", "did you mean 'sgd'"),
        ("--train.schedule cosin", "did you mean 'cosine'"),
        ("--task classification", "did you mean 'image_classification'"),
        ("--source.name arrays", "arrays needs --source.path"),
        ("--source.name arrays --source.path nowhere.npz", "nowhere.npz does not exist"),
        ("--source.name arrays --source.dataset x", "arrays has no option 'dataset'"),
        ("--clean.manifest nowhere.jsonl", "nowhere.jsonl is no file"),
        ("--train.epochs 0", "--train.epochs must be at least 1 and at most 10**9, received 0"),
        ("--train.steps 0", "--train.steps must be at least 1"),
        ("--train.batch-size -4", "--train.batch-size must be at least 1"),
        ("--train.patience 0", "--train.patience must be at least 1"),
        ("--train.learning-rate 0", "--train.learning-rate must be positive"),
        ("--train.learning-rate nan", "--train.learning-rate must be positive"),
        ("--train.patience 2 --data.validation 0", "--train.patience watches the validation"),
        ("--data.validation 1", "--data.validation must be at least 0 and below 1"),
        ("--data.validation 0.5 --data.test 0.5", "plus --data.test must be below 1"),
        ("--data.limit 0", "--data.limit must be at least 1"),
        ("--data.image-size 0 8", "--data.image-size must be at least 1"),
        ("--runtime.replicas 2", "--runtime.replicas 2: more than 1 is not there yet"),
        ("--runtime.replicas 0", "--runtime.replicas must be at least 1"),
        ("--runtime.precision mixed_float16", "mixed_float16 is not there yet"),
        ("--runtime.seed -1", "--runtime.seed must be at least 0"),
        ("--train.engine gradient_tape", "gradient_tape is not there yet; use model_fit"),
        ("--export.name a/b", "--export.name must be a plain file name"),
        (f"--export.name {'x' * 300}", "--export.name must be a plain file name"),
        ("--export.name \udcff", "--export.name must be a plain file name"),
        ("--run-directory \udcff", "--run-directory must be a path in UTF-8"),
        (f"--source.name arrays --source.path {'x' * 300}", "does not exist"),
        ("--train.epochs 99999999999999999999999", "at least 1 and at most 10**9"),
        ("--data.image-size 99999999 9", "at most 16384"),
        ("--data.split-seed 9223372036854775808", "--data.split-seed must be"),
        ("--model.name os.path", "no module 'os.path'"),
        ("--train.optimizer os.system", "no module 'os'"),
        ("--config", "--config needs a file"),
        ("--config nowhere.json", "nowhere.json cannot be read"),
        ("digits --config x.json", "leave the recipe 'digits' away"),
        ("digits cifar10_convnet", "'cifar10_convnet' is too much after the recipe 'digits'"),
        ("--source.dataset digit", "--source.dataset of scikit_learn must be one of 'digits'"),
        ("--model.options filters=0", "filters of convnet must be int, at least 1"),
        ("--model.options filters=abc", "must be int, at least 1, received 'abc'"),
        ("--model.options momentum=True", "must be float, from 0 to 1, received True"),
        ("--model.name sequential --model.options dropout=1.5", "dropout of sequential must be"),
        ("--data.augment crop padding=-1", "padding of crop must be int, at least 0"),
        ("--data.augment crop fill=foo", "must be one of 'zero', 'reflect', received 'foo'"),
        ("--train.optimizer sgd --train.optimizer-options momentum=5", "received 5"),
        ("--train.optimizer sgd --train.optimizer-options nesterov=1", "must be bool, received 1"),
        ("--train.schedule-options warmup=2", "warmup of cosine must be"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(words, message):
    with pytest.raises(UsageError) as caught:
        configure(words.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--train.lerning-rate 3", "--train.learning-rate"),
        ("--train.epochs three", "--train.epochs"),
        ("--train.engine tape", "gradient_tape"),
        ("--data.cache ram", "memory"),
        ("--data.augment padding=4", "stands before any operation"),
        ("--train.epochs 3 again", "again"),
    ],
)
def test_misspelt_options_and_values_exit_with_2_and_a_hint(words, message, capsys):
    with pytest.raises(SystemExit) as caught:
        configure(words.split())
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_help_lists_the_recipes_and_their_options(capsys):
    for words in (["--help"], ["-h"]):
        with pytest.raises(SystemExit) as caught:
            configure(words)
        assert caught.value.code == 0
        text = capsys.readouterr().out
        for name in shelf.names("recipes"):
            assert name in text and shelf.summary("recipes", name) in text
    with pytest.raises(SystemExit) as caught:
        configure(["digits", "--help"])
    text = capsys.readouterr().out
    assert caught.value.code == 0
    assert "convnet: filters, blocks, momentum; sequential: dropout" in " ".join(text.split())
    for flag in ("--source.path", "--train.patience", "--runtime.replicas", "--export.no-enabled"):
        assert flag in text


def test_neither_help_nor_an_error_imports_tensorflow_or_numpy():
    program = """
import sys
from pipeline.fit import main
from pipeline.errors import UsageError
for words in (["--help"], ["digits", "--help"], ["nothing"], ["--train.epochs", "x"],
              ["--run-directory", "/dev/null"], ["--train.epochs", "0"]):
    try:
        main(words)
    except (SystemExit, UsageError):
        pass
heavy = {"tensorflow", "keras", "numpy", "sklearn", "matplotlib", "tensorflow_datasets"}
sys.exit(", ".join(heavy & set(sys.modules)) or 0)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-500:]


def test_as_a_program_an_error_is_one_line_and_exit_code_2(tmp_path):
    result = run_module("pipeline.fit", "digit", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: unknown recipe 'digit'; did you mean 'digits'?\n"
    assert not list(tmp_path.iterdir())


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
        ('{"source": {"name": 5}}', "--source.name must be str, received 5"),
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
        ("train", {"epochs": "3"}, "--train.epochs must be int, received '3'"),
        ("train", None, "--train must be Train, received None"),
        ("data", {"augment": {"crop": None}}, "--data.augment must be dict"),
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


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["--help", "\ud800", "../x", "9" * 400]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_mutated_config_is_refused_or_valid(tmp_path, data):
    values = configure([]).as_json()
    for _ in range(data.draw(st.integers(1, 3))):
        section = data.draw(st.sampled_from(sorted(values)))
        inner = values[section] if isinstance(values[section], dict) else None
        if inner and data.draw(st.booleans()):
            inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(JUNK)
        else:
            values[section] = data.draw(JUNK)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    try:
        assert isinstance(read(path), Config)
    except UsageError as error:
        assert str(error)


FLAGS = [
    f"--{section}.{field}".replace("_", "-")
    for section, options in configure([]).as_json().items()
    if isinstance(options, dict)
    for field in options
]


@settings(deadline=None, max_examples=300)
@given(
    words=st.lists(
        st.sampled_from(FLAGS)
        | st.sampled_from(
            ["digits", "flip", "crop", "padding=2", "-", "--", "=", "0", "-1", "1e400"]
        )
        | st.text(max_size=8),
        max_size=6,
    )
)
def test_fuzzed_words_are_refused_or_valid(words):
    try:
        assert isinstance(configure(words), Config)
    except UsageError as error:
        assert str(error)
    except SystemExit as stop:
        assert stop.code in (0, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"epochs": "3"}}, "--train.epochs must be int, received '3'"),
        ({"train": {"batch_size": 2.5}}, "--train.batch-size must be int, received 2.5"),
        ({"runtime": {"seed": None}}, "--runtime.seed must be int, received None"),
        (
            {"runtime": {"precision": "half"}},
            "--runtime.precision must be one of 'auto', 'float32'",
        ),
        ({"data": {"augment": ["flip"]}}, "--data.augment must be dict"),
        ({"train": 3}, "--train must be Train, received 3"),
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
