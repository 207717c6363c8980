"""Words and files to a Config: defaults, hints, exit codes, and no import of TensorFlow."""

import json
import subprocess
import sys

import pytest
from conftest import REPOSITORY

from pipeline.config import registry
from pipeline.config.command_line import configure
from pipeline.config.config import Source
from pipeline.utils.errors import UsageError


def test_words_change_the_recipe():
    assert configure([]) == registry.load("recipes", "digits")()
    words = "cifar10_convnet --train.epochs 3 --data.augment flip crop padding=2 fill=reflect"
    more = "--model.options filters=8 --export.no-enabled --train.batch-size=64"
    config = configure([*words.split(), *more.split(), "--train.class-weight", "cat=2", "dog=0.5"])
    assert (config.recipe, config.train.epochs, config.train.batch_size) == (
        "cifar10_convnet",
        3,
        64,
    )
    assert config.data.augment == {"flip": {}, "crop": {"padding": 2, "fill": "reflect"}}
    assert config.model.options == {"filters": 8} and not config.export.enabled
    assert config.train.class_weight == {"cat": 2.0, "dog": 0.5}


def test_another_function_does_not_inherit_the_options_of_the_first():
    config = configure(["cifar10_convnet", "--train.optimizer", "adam"])
    assert config.train.optimizer_options == {}
    same = configure(["cifar10_convnet", "--train.optimizer=sgd"])
    assert same.train.optimizer_options == {"momentum": 0.9}
    changed = configure([]).changed(source={"name": "tfds", "dataset": "mnist"})
    assert changed.source == Source(name="tfds", options={"dataset": "mnist"})


def test_options_of_the_source_are_read_by_their_types_and_saved(npz, tmp_path):
    config = configure(["digits", "--source.name", "arrays", "--source.path", str(npz())])
    assert config.source.options.keys() == {"path"}
    words = f"digits --source.name tfrecord --source.path {tmp_path} --source.class-names a b"
    config = configure([*words.split(), *["--source.label", "x", "--source.group", "y"]])
    assert config.source.options["class_names"] == ("a", "b")
    (tmp_path / "config.json").write_text(json.dumps(config.as_json()))
    saved = ["--config", str(tmp_path / "config.json")]
    assert configure(saved).as_json() == config.as_json()
    folder = Source(name="folder", options={"path": tmp_path})
    words = ["--source.name", "folder", "--source.path", str(tmp_path)]
    assert configure([*saved, *words]).source == folder


# Words -> a part of the message. Each kind of check is here once.
REFUSED = {
    # Names
    "digit": "unknown recipe 'digit'; did you mean 'digits'?",
    "--model.name convnt": "unknown model 'convnt'; did you mean 'convnet'?",
    "--data.augment flp": "did you mean 'flip'?",
    "--model.options depth=3": "convnet has no option 'depth'",
    "--model.name os.path": "no module named 'os'",
    "json.dumps": "the recipe 'json.dumps' cannot be called: dumps() missing 1",
    "--source.name arrays": "arrays needs --source.path",
    "--train.lerning-rate 3": "unknown option '--train.lerning-rate'; did you mean '--train.learn",
    "--epochs 3": "unknown option '--epochs'; did you mean '--train.epochs'?",
    "--train.xx 3": "unknown option '--train.xx'; --help after the recipe shows all options",
    "digits cifar10_convnet": "unexpected 'cifar10_convnet' after the recipe",
    "digits --config x.json": "is a complete config; remove the recipe 'digits'",
    # Values of one type
    "--train.epochs 0": "--train.epochs must be a whole number from 1 to 1,000,000,000; got '0'",
    "--train.epochs": "from 1 to 1,000,000,000; got no value",
    "--train.learning-rate -1": "--train.learning-rate must be a number above 0",
    "--data.validation 1": "--data.validation must be a number of at least 0 and below 1; got '1'",
    "--data.image-size 8": "must be 2 values, each a whole number from 1 to 16,384 or None",
    "--data.cache ram": "must be one of auto, device, memory, disk, none; got 'ram'",
    "--data.augment crop padding=-1": "padding of crop must be a whole number of at least 0",
    "--data.augment erase area=0.3,0.1": "area of erase must be 2 values, each a number, in asc",
    "--model.filters abc": "--model.filters of convnet must be a whole number of at least 1; got",
    "--train.class-weight 3=-1": "each value a number from 0 to 1,000,000; got '3=-1'",
    "--clean.manifest no.jsonl": "--clean.manifest must be an existing file or None; got",
    "--export.calibrate no": "--export.calibrate takes no value; got 'no'",
    "--export.name a/b": "must be a plain file name",
    "--export.batch-sizes 0 8": "each a whole number from 1 to 65,536, 1 to 100 values; got '0 8'",
    "--export.directory=~/models": "--export.directory: the ~ of ~/models is not expanded here",
    "--runtime.devices 0,0": "must be auto, cpu, or different GPU numbers such as 0,2; got '0,0'",
    "--runtime.gpu-memory 101%": "must be at least 1MiB, such as 8GiB, or a share such as 80%",
    "--train.patience 2 --data.validation 0": "--train.patience monitors the validation loss",
    "--data.validation 0.5 --data.test 0.5": "plus --data.test must be below 1; got 1.0",
    "--runtime.replicas 3": "--train.batch-size 32 cannot be split into equal parts for 3 replicas",
    "--train.batch-size 30 --train.accumulate 4": "cannot be split into --train.accumulate 4",
    "--train.clip-norm 1 --train.clip-value 1": "use only one of --train.clip-norm and --train.cl",
    "--data.augment cutmix flip mixup": "use only one of --data.augment cutmix and --data.aug",
    "--runtime.deterministic --runtime.xla on": "use only one of --runtime.deterministic and",
    "--runtime.devices 0,1 --runtime.replicas 3": "3 is more than the 2 GPUs of --runtime.devices",
}


@pytest.mark.parametrize("words", REFUSED, ids=lambda words: ascii(words)[1:60])
def test_invalid_words_are_refused_in_one_line(words):
    with pytest.raises(UsageError) as caught:
        configure(words.split(" "))
    message = str(caught.value)
    assert REFUSED[words] in message and "\n" not in message and len(message) < 1000


def test_values_may_look_like_flags_if_they_are_numbers_or_follow_an_equals_sign():
    config = configure(["--export.name=-x", "--train.batch_size", "16", "--train.batch-size=8"])
    assert (config.export.name, config.train.batch_size) == ("-x", 8)


def test_a_dotted_name_is_found_without_running_any_code(tmp_path, monkeypatch):
    (tmp_path / "loud").mkdir()
    (tmp_path / "loud/__init__.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "loud/mine.py").write_text("def net(x): ...")
    (tmp_path / "bare/deep").mkdir(parents=True)
    (tmp_path / "bare/deep/mine.py").write_text("def net(x): ...")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "typed.py").write_text("def net(x, *, a: Path('ran').touch() = 1): ...")
    monkeypatch.chdir(tmp_path)
    for name in ("loud.mine.net", "bare.deep.mine.net", "typed.net"):
        assert configure(["--model.name", name]).model.name == name
    assert not (tmp_path / "ran").exists()
    with pytest.raises(UsageError, match="no module named"):
        configure(["--model.name", "loud.nothing.x"])


def shown(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        configure(list(words))
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_lists_the_recipes(capsys):
    text = shown(capsys, "--help")
    assert text == shown(capsys, "-h") and "--help REGISTRY" in text
    for name in registry.names("recipes"):
        assert f"{name} " in text and registry.find("recipes", name).summary in text


def test_help_of_a_recipe_shows_each_option_with_meaning_range_and_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    text = shown(capsys, "digits", "--help")
    assert max(map(len, text.splitlines())) <= 90
    assert "--recipe" not in text and "\ntrain: How the model is trained.\n" in text
    whole = " ".join(text.split())
    for part in (
        "--train.epochs Passes over the training split. (a whole number from 1 to 1,000,000,000; "
        "default: 40)",
        "--export.enabled, --export.no-enabled Write and verify",
        "(airbench, application, convnet, keras_hub, lenet, linear, resnet, sequential, tiny, or "
        "package.module:name; default: convnet)",
    ):
        assert part in whole


def test_help_describes_a_registry_with_every_option(capsys):
    for kind in registry.REGISTRIES:
        lines = shown(capsys, "--help", kind).splitlines()
        for name in registry.names(kind):
            function = registry.find(kind, name)
            at = lines.index(f"{name}: {function.summary}")
            for option, about in function.options.items():
                at += 1
                assert about.meaning, (kind, name, option)
                assert lines[at] == f"    {option}: {about}. {about.meaning}", (kind, name)
    assert "\n    momentum: " in shown(
        capsys, "--help", "pipeline.training.optim.optimizers.muon:muon"
    )
    with pytest.raises(UsageError, match="unknown registry 'model'; did you mean 'models'"):
        configure(["--help", "model"])


def test_neither_help_nor_an_error_imports_tensorflow_or_numpy():
    program = """
import sys
from pipeline.export.__main__ import main as export
from pipeline.fit import main
from pipeline.utils.errors import UsageError
for words in (["--help"], ["--help", "models"], ["digits", "--help"], ["nothing"],
              ["--run-directory", "/dev/null"], ["--train.epochs", "0"], ["--pin", "7"]):
    for command in (main, export):
        try:
            command(words)
        except (SystemExit, UsageError):
            pass
heavy = {"tensorflow", "keras", "numpy", "sklearn", "matplotlib", "tensorflow_datasets", "rich"}
sys.exit(", ".join(heavy & set(sys.modules)) or 0)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-500:]
