"""Words and files to a Config: defaults, hints, exit codes, and no TensorFlow on the way."""

import json
import subprocess
import sys

import pytest
from conftest import REPOSITORY, run_module

from pipeline.config import registry
from pipeline.config.command_line import configure
from pipeline.config.config import Source
from pipeline.utils.errors import UsageError


def test_without_words_the_recipe_is_digits():
    assert configure([]) == registry.load("recipes", "digits")()


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
    assert changed.source == Source(name="tfds", options={"dataset": "mnist"})


def test_a_new_source_name_drops_the_options_of_the_old(npz, tmp_path):
    config = configure(["digits", "--source.name", "arrays", "--source.path", str(npz())])
    assert config.source.options.keys() == {"path"}
    words = f"digits --source.name tfrecord --source.path {tmp_path} --source.class-names a b"
    config = configure([*words.split(), *["--source.label", "x", "--source.group", "y"]])
    assert config.source.options["class_names"] == ("a", "b")
    assert config.source.options["label"] == "x"
    (tmp_path / "config.json").write_text(json.dumps(config.as_json()))
    saved = ["--config", str(tmp_path / "config.json")]
    assert configure(saved).as_json() == config.as_json()
    folder = Source(name="folder", options={"path": tmp_path})
    words = ["--source.name", "folder", "--source.path", str(tmp_path)]
    assert configure([*saved, *words]).source == folder
    assert config.changed(source={"name": "folder", "path": tmp_path}).source == folder
    parts = ["train=train[:10%]", "test=test"]
    config = configure(["cifar10_convnet", "--source.splits", *parts, "--source.group", "id"])
    assert config.source.options["splits"] == {"train": "train[:10%]", "test": "test"}
    changed = config.changed(source={"name": "folder", "path": str(tmp_path)})
    assert changed.source.path == folder.path


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
        (
            "--source.name arrays --source.path nowhere.npz",
            "must be an existing path, received 'nowhere.npz'",
        ),
        ("--source.name arrays --source.dataset x", "arrays has no option 'dataset'"),
        ("--source.splits train=train", "scikit_learn has no option 'splits'"),
        (
            "--source.name tfds --source.dataset x --source.splits tran=x",
            "--source.splits of tfds must be",
        ),
        ("--source.name folder --source.path . --source.label x", "folder has no option 'label'"),
        ("--clean.manifest nowhere.jsonl", "nowhere.jsonl is not a file"),
        (
            "--train.epochs 0",
            "--train.epochs must be a whole number, from 1 to 1,000,000,000, received '0'",
        ),
        ("--train.steps 0", "--train.steps must be a whole number, from 1 to"),
        ("--train.batch-size -4", "--train.batch-size must be a whole number, from 1 to"),
        ("--train.patience 0", "--train.patience must be a whole number, from 1 to"),
        ("--train.learning-rate 0", "--train.learning-rate must be a number, above 0"),
        ("--train.learning-rate nan", "--train.learning-rate must be a number, above 0"),
        ("--train.patience 2 --data.validation 0", "--train.patience watches the validation"),
        ("--data.validation 1", "--data.validation must be a number, at least 0 and below 1"),
        ("--data.validation 0.5 --data.test 0.5", "plus --data.test must be below 1"),
        ("--data.limit 0", "--data.limit must be a whole number, from 1 to"),
        (
            "--data.image-size 0 8",
            "--data.image-size must be 2 values, each a whole number, from 1 to",
        ),
        ("--runtime.replicas 3", "--train.batch-size 32 cannot be cut into equal parts for 3 repl"),
        ("--train.batch-size 30 --train.accumulate 4", "cannot be split into --train.accumulate 4"),
        (
            "--runtime.replicas 4 --train.accumulate 16",
            "4 replicas and 16 micro-batches each; 64 can",
        ),
        (
            "--train.clip-norm 1 --train.clip-value 1",
            "use only one of --train.clip-norm and --train.clip-value",
        ),
        ("--train.clip-norm 0", "--train.clip-norm must be a number, above 0 and finite"),
        ("--train.ema 1", "--train.ema must be a number, at least 0 and below 1"),
        ("--train.class-weight 3=-1", "--train.class-weight 3 must be a number from 0 to 1e6"),
        ("--data.augment cutmix flip mixup", "cutmix and mixup both mix labels; use only one"),
        ("--train.freeze-epochs 2", "--train.freeze-epochs ends --train.freeze; give both"),
        ("--train.freeze a --train.freeze-epochs 40", "40 is never reached in --train.epochs 40"),
        ("--train.synchronized-batch-norm --train.accumulate 2", "use only one of them"),
        ("--runtime.deterministic --runtime.xla on", "use only one of --runtime.deterministic"),
        (
            "--runtime.replicas 0",
            "--runtime.replicas must be auto or a whole number, from 1 to 1,024",
        ),
        ("--runtime.seed -1", "--runtime.seed must be a whole number, at least 0"),
        ("--export.name a/b", "--export.name must be a plain file name"),
        ("--export.name .hid", "--export.name must be a name without a colon that"),
        ("--export.name a:b", "--export.name must be a name without a colon that"),
        ("--export.precision half", "must be one of float32, float16, bfloat16, received 'half'"),
        ("--export.batch-sizes 0 8", "--export.batch-sizes must be values with commas"),
        ("--export.batch-sizes 70000", "from 1 to 65,536, received '70000'"),
        ("--export.batch-sizes", "--export.batch-sizes must be 1 to 100 sizes"),
        ("--export.batch-sizes 8 many", "--export.batch-sizes must be"),
        ("--export.calibrate no", "--export.calibrate takes no value, received 'no'"),
        (f"--export.name {'x' * 300}", "--export.name must be a plain file name"),
        ("--export.name \udcff", "--export.name must be a plain file name"),
        ("--run-directory \udcff", "--run-directory must be a path in UTF-8"),
        (f"--source.name arrays --source.path {'x' * 300}", "an existing path"),
        ("--train.epochs 99999999999999999999999", "from 1 to 1,000,000,000"),
        ("--data.image-size 99999999 9", "from 1 to 16,384"),
        ("--data.split-seed 9223372036854775808", "--data.split-seed must be"),
        ("--model.name os.path", "no module 'os'"),
        ("--train.optimizer os.system", "no module 'os'"),
        ("--config", "--config needs a file"),
        ("--config nowhere.json", "nowhere.json cannot be read"),
        ("digits --config x.json", "leave the recipe 'digits' away"),
        ("digits cifar10_convnet", "'cifar10_convnet' is too much after the recipe 'digits'"),
        ("--source.dataset digit", "--source.dataset of scikit_learn must be one of digits"),
        ("--model.options filters=0", "filters of convnet must be a whole number, at least 1"),
        ("--model.options filters=abc", "must be a whole number, at least 1, received 'abc'"),
        ("--model.options momentum=True", "must be a number, from 0 to 1, received 'True'"),
        ("--model.name sequential --model.options dropout=1.5", "dropout of sequential must be"),
        ("--data.augment crop padding=-1", "padding of crop must be a whole number, at least 0"),
        ("--data.augment crop fill=foo", "must be one of zero, reflect, received 'foo'"),
        ("--train.optimizer sgd --train.optimizer-options momentum=5", "received '5'"),
        (
            "--train.optimizer sgd --train.optimizer-options nesterov=1",
            "must be True or False, received '1'",
        ),
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
        (
            "--train.lerning-rate 3",
            "unknown option '--train.lerning-rate'; did you mean '--train.l",
        ),
        ("--epochs 3", "unknown option '--epochs'; did you mean '--train.epochs'?"),
        ("--train.lr 3", "did you mean '--train.learning-rate'?"),
        ("--lr 3", "did you mean '--train.learning-rate'?"),
        ("--trian.lr 3", "did you mean '--train.learning-rate'?"),
        ("--bs 3", "did you mean '--train.batch-size' or '--export.batch-sizes'?"),
        ("--optim adam", "did you mean '--train.optimizer'?"),
        (
            "--model.epochs 3",
            "--model.epochs: convnet has no option 'epochs'; did you mean '--train.epochs'?",
        ),
        ("--train-epochs 3", "did you mean '--train.epochs'?"),
        ("--directory x", "did you mean '--clean.directory' or '--export.directory'?"),
        ("--train.xx 3", "unknown option '--train.xx'; --help after the recipe shows all"),
        ("-x 3", "unknown option '-x'; --help after the recipe shows all"),
        ("--zzzzzzzzz", "unknown option '--zzzzzzzzz'; --help after the recipe shows all"),
        ("--", "unknown option '--'; --help"),
        (
            "--train.epochs three",
            "--train.epochs must be a whole number, from 1 to 1,000,000,000, received 'three'",
        ),
        ("--train.epochs 3 again", "1,000,000,000, received '3 again'"),
        ("--train.epochs", "--train.epochs needs a value: a whole number"),
        (
            "--train.steps x",
            "--train.steps must be a whole number, from 1 to 1,000,000,000 or None, received",
        ),
        ("--train.engine tape", "unknown engine 'tape'; "),
        ("--data.cache ram", "--data.cache must be one of auto, device, memory, disk, none, rec"),
        (
            "--runtime.replicas x",
            "--runtime.replicas must be auto or a whole number, from 1 to 1,024, received 'x'",
        ),
        (
            "--data.image-size 8",
            "must be 2 values, each a whole number, from 1 to 16,384 or None, received '8'",
        ),
        ("--data.augment padding=4", "'padding=4' comes before any operation"),
        ("--model.options filters", "words of the form name=value; 'filters' is not"),
        ("--export.no-enabled true", "--export.no-enabled takes no value, received 'true'"),
        (
            "--export.name -x",
            "--export.name needs a value: one word or None; one that starts with -",
        ),
        ("--export.name=", "--export.name must be a plain file name, received ''"),
        ("--run-directory=", "--run-directory must be a path or None, received ''"),
        ("--config=", "--config needs a file"),
        ("--export.directory a\x1bb", "a path in UTF-8 without control characters"),
        (f"--train.epochs {'9' * 5000}", "1,000,000,000, received '9999"),
        ("json.dumps", "the recipe 'json.dumps' needs arguments"),
    ],
)
def test_misspelt_options_and_values_are_refused_in_one_line(words, message):
    with pytest.raises(UsageError) as caught:
        configure(words.split(" "))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_an_empty_word_is_no_recipe():
    with pytest.raises(UsageError, match="unknown recipe ''"):
        configure([""])


def test_values_may_look_like_flags_where_they_are_numbers_or_follow_an_equals_sign():
    config = configure(["--export.name=-x", "--train.batch_size", "16", "--train.batch-size=8"])
    assert (config.export.name, config.train.batch_size) == ("-x", 8)
    for number in ("-1", "-.5", "-inf", "-NaN"):
        with pytest.raises(UsageError, match="--train.learning-rate must be a number, above 0"):
            configure(["--train.learning-rate", number.lower()])


def test_a_name_is_looked_for_without_running_any_code(tmp_path, monkeypatch):
    (tmp_path / "loud").mkdir()
    (tmp_path / "loud/__init__.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "loud/mine.py").write_text("def net(x): ...")
    (tmp_path / "loud/wrong.py").write_text("def net(:")
    (tmp_path / "bare/deep").mkdir(parents=True)
    (tmp_path / "bare/deep/mine.py").write_text("def net(x): ...")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "typed.py").write_text("def net(x, *, a: Path('ran').touch() = 1): ...")
    monkeypatch.chdir(tmp_path)
    for name in ("loud.mine.net", "bare.deep.mine.net", "typed.net"):
        assert configure(["--model.name", name]).model.name == name
    assert not (tmp_path / "ran").exists()
    with pytest.raises(UsageError, match=r"wrong.py, line 1, is not valid Python: invalid syntax"):
        configure(["--model.name", "loud.wrong.net"])
    for name in ("loud.mine.net.x", "loud.nothing.x", "...", "loud..", ".mine", "a\0.b", "tiny.x"):
        with pytest.raises(UsageError, match="there is no module"):
            configure(["--model.name", name])


def test_help_lists_the_recipes_and_their_options(capsys):
    for words in (["--help"], ["-h"]):
        with pytest.raises(SystemExit) as caught:
            configure(words)
        assert caught.value.code == 0
        text = capsys.readouterr().out
        for name in registry.names("recipes"):
            assert name in text and registry.find("recipes", name).summary in text
    with pytest.raises(SystemExit) as caught:
        configure(["digits", "--help"])
    text = capsys.readouterr().out
    assert caught.value.code == 0
    for flag in (
        "--source.options",
        "--train.patience",
        "--runtime.replicas",
        "--export.no-enabled",
    ):
        assert flag in text


def test_help_describes_a_registry_with_every_option(capsys):
    for kind in registry.REGISTRIES:
        with pytest.raises(SystemExit) as caught:
            configure(["--help", kind])
        assert caught.value.code == 0
        lines = capsys.readouterr().out.splitlines()
        for name in registry.names(kind):
            function = registry.find(kind, name)
            at = lines.index(f"{name}: {function.summary}")
            for option, about in function.options.items():
                at += 1
                assert lines[at] == f"    {option}: {about}. {about.meaning}", (kind, name)
                assert about.meaning, (kind, name, option)
    with pytest.raises(UsageError, match="unknown registry 'model'; did you mean 'models'"):
        configure(["--help", "model"])
    with pytest.raises(SystemExit):
        configure(["--help"])
    assert "--help REGISTRY" in capsys.readouterr().out


def test_neither_help_nor_an_error_imports_tensorflow_or_numpy():
    program = """
import sys
from pipeline.fit import main
from pipeline.utils.errors import UsageError
for words in (["--help"], ["--help", "models"], ["digits", "--help"], ["nothing"],
              ["--train.epochs", "x"],
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


def test_a_module_that_is_not_a_command_names_the_right_one(tmp_path):
    result = run_module("pipeline.evaluate", "runs/mine", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert "python -m pipeline.export runs/mine evaluates" in result.stderr
    assert result.stderr.count("\n") == 1


def test_as_a_program_an_error_is_one_line_and_exit_code_2(tmp_path):
    result = run_module("pipeline.fit", "digit", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: unknown recipe 'digit'; did you mean 'digits'?\n"
    assert not list(tmp_path.iterdir())
