"""Words and files to a Config: defaults, hints, exit codes, and no import of
TensorFlow.
"""

import json
import re
from pathlib import Path

import pytest

from pipeline.config import cli_parser, registry, type_hints
from pipeline.config.command_line import configure
from pipeline.config.config import Config, SourceConfig
from pipeline.utils.errors import UsageError


def test_words_change_the_recipe():
    assert configure([]) == registry.load("recipes", "digits")()
    words = (
        "cifar10_convnet --train.epochs 3 --data.augment flip crop padding=2"
        " fill=reflect"
    )
    more = "--model.options filters=8 --export.no-enabled --train.batch-size=64"
    config = configure(
        [*words.split(), *more.split(), "--train.class-weight", "cat=2", "dog=0.5"]
    )
    assert (config.recipe, config.train.epochs, config.train.batch_size) == (
        "cifar10_convnet",
        3,
        64,
    )
    assert config.data.augment == {
        "flip": {},
        "crop": {"padding": 2, "fill": "reflect"},
    }
    assert config.model.options == {"filters": 8} and not config.export.enabled
    assert config.train.class_weight == {"cat": 2.0, "dog": 0.5}
    without = configure(["cifar10_convnet", "--data.augment", "none"])
    assert without.data.augment == {}


def test_another_function_does_not_inherit_the_options_of_the_first():
    config = configure(["cifar10_convnet", "--train.optimizer", "adam"])
    assert config.train.optimizer_options == {}
    same = configure(["cifar10_convnet", "--train.optimizer=sgd"])
    assert same.train.optimizer_options == {"momentum": 0.9}
    changed = configure([]).changed(source={"name": "tfds", "dataset": "mnist"})
    assert changed.source == SourceConfig(name="tfds", options={"dataset": "mnist"})


def test_options_of_the_source_are_read_by_their_types_and_saved(npz, tmp_path):
    config = configure(
        ["digits", "--source.name", "arrays", "--source.path", str(npz())]
    )
    assert config.source.options.keys() == {"path"}
    words = "--source.class-names a b --source.label x --source.group y"
    place = ["--source.name", "tfrecord", "--source.path", str(tmp_path)]
    config = configure(["digits", *place, *words.split()])
    assert config.source.options["class_names"] == ("a", "b")
    (tmp_path / "config.json").write_text(json.dumps(config.as_json()))
    saved = ["--config", str(tmp_path / "config.json")]
    assert configure(saved).as_json() == config.as_json()
    folder = SourceConfig(name="folder", options={"path": tmp_path})
    words = ["--source.name", "folder", "--source.path", str(tmp_path)]
    assert configure([*saved, *words]).source == folder


def test_the_last_part_of_an_option_is_short_for_it(tmp_path):
    short = (
        "--epochs 3 --lr=0.1 --image-size 64 --no-progress --filters 8 --augment flip"
    )
    long = (
        "--train.epochs 3 --train.learning-rate 0.1 --data.image-size 64 64"
        " --log.no-progress "
    )
    long += (
        "--model.options blocks=3 filters=8 --data.augment flip --runtime.time-limit"
        " 5min"
    )
    given = configure([*short.split(), "--model.blocks", "3", "--time-limit", "5min"])
    assert given == configure(long.split())
    assert given == configure([]).changed(
        train={"epochs": 3, "learning_rate": 0.1},
        data={"image_size": 64, "augment": {"flip": {}}},
        model={"filters": 8},
        runtime={"time_limit": "5min"},
        log={"progress": False},
    )
    sized = configure(["--image-size", "8", "--task.input", "image"])
    assert sized.data.image_size == (8, 8)
    with pytest.raises(UsageError, match="image-size: features has no option"):
        configure(["--image-size", "8", "--task.input", "features"])
    assert configure(["--clean", "--no-export"]) == configure([]).changed(
        clean={"enabled": True}, export={"enabled": False}
    )
    assert configure(["--gpus", "2"]) == configure(["--runtime.replicas", "2"])
    assert configure(["--gpus", "0,1"]) == configure(["--runtime.devices", "0,1"])
    folder = SourceConfig(name="folder", options={"path": tmp_path})
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "image.png").touch()
    for flag in ("--source.path", "--path"):
        assert configure(["digits", flag, str(tmp_path)]).source == folder
    tfds = configure(
        ["cifar10_convnet", "--path", str(tmp_path)]
    ).source  # it has this option
    assert tfds == SourceConfig(
        name="tfds", options={"dataset": "cifar10", "path": tmp_path}
    )
    for flag, names in cli_parser.short_flags(Config).items():
        assert all(name.endswith(f".{flag[2:]}") for name in names)
        assert flag not in cli_parser.flags(Config), f"{flag} hides {names}"


def test_resume_takes_the_options_and_the_directory_of_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="runs/digits-1 is not a run"):
        configure(["--resume", "runs/digits-1"])
    photos = {"name": "folder", "path": tmp_path / "photos"}
    for path in ("photos", "moved", "runs/mine-1"):
        Path(path).mkdir(parents=True)
    begun = configure(["--epochs", "7"]).changed(source=photos)
    Path("runs/mine-1/config.json").write_text(json.dumps(begun.as_json()))
    run = begun.changed(run_directory="runs/mine-1")
    assert configure(["--resume", "runs/mine-1"]) == run
    assert configure(["--config", "runs/mine-1"]) == begun
    words = ["--resume=runs/mine-1", "--epochs", "9", "--force"]
    assert configure(words) == run.changed(train={"epochs": 9}, force=True)
    Path("photos").rmdir()
    moved = configure(["--resume", "runs/mine-1", "--source.path", "moved"])
    assert moved == run.changed(source={"path": Path("moved")})
    for words, message in {
        "--resume runs/mine-2": (
            "there is no such directory; did you mean 'runs/mine-1'?"
        ),
        "--resume moved": (
            "moved is not a run: it has no config.json; choose from runs/mine-1"
        ),
        "--config runs/mine-1 --config=a.json": "--config is given twice; keep one",
        "--resume --force": "--resume needs a run, such as runs/digits-1",
        "digits --resume runs/mine-1": (
            "use only one of the recipe 'digits' and --resume"
        ),
        "--resume runs/mine-1 --path moved --run-directory x": (
            "only one of --resume and --run-dir"
        ),
    }.items():
        with pytest.raises(UsageError) as caught:
            configure(words.split())
        assert message in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="unknown option '--resume'"):
        configure(["--resume", "runs/mine-1"], "pipeline inspect")


# Words -> a part of the message. Each kind of check is here once.
REFUSED = {
    # Names
    "digit": "'digit'; .*'digits'.*no such file",
    "--model.name convnt": "unknown model 'convnt'; .*'convnet'",
    "--data.augment flp": "did you mean 'flip'?",
    "--task.input-options lower=false": "needs --task.input, such as --task.input text",
    "--model.options depth=3": "convnet has no option 'depth'",
    "--model.name os.path": "no module named 'os'",
    "json.dumps": "'json.dumps' cannot be called: .*missing 1",
    "--source.name arrays": "arrays needs --source.path",
    "--train.lerning-rate 3": "lerning-rate'; .*'--train.learning-rate'",
    "--epoch 3": "'--epoch'; .*'--train.epochs'",
    "--train.lr 3": "'--train.lr'; .*'--train.learning-rate'",
    "-lr 3": "'-lr'; .*'--train.learning-rate'",
    "--gpu 1": "'--gpu'; .*'--gpus'",
    "--enabled": "ambiguous .*--clean.enabled.*--export.enabled",
    "--momentum 0.9": "--model.momentum.*optimizer-options momentum=",
    "--warmup 0.1": "'--warmup'; .*schedule-options warmup=",
    "--epochs 3 digits": "got '3 digits'; 'digits' comes before",
    "--dry-run /dev": "takes no value; .*'/dev' comes before",
    "--source.path nothing": "--source.path .*existing directory",
    "--train.xx 3": "unknown option '--train.xx'; --help",
    "digits cifar10_convnet": "unexpected 'cifar10_convnet' after the recipe",
    "digits --config x.json": "only one of the recipe 'digits' and --config",
    # Values of one type
    "--train.epochs 0": "--train.epochs .* 1 to 1,000,000,000; got '0'",
    "--train.epochs": "from 1 to 1,000,000,000; got no value",
    "--train.learning-rate -1": "--train.learning-rate .*above 0",
    "--data.validation 1": "--data.validation .*below 1; got '1'",
    "--data.image-size 8 8 8": "from 1 to 16,384 or 2 values",
    "--data.cache ram": "auto, device, memory, disk, none; got 'ram'",
    "--data.augment crop padding=-1": "padding of crop .*at least 0",
    "--data.augment erase area=0.3,0.1": "area of erase .*2 values, .*in asc",
    "--model.filters abc": "--model.filters of convnet .*at least 1",
    "--train.class-weight 3=-1": "from 0 to 1,000,000; got '3=-1'",
    "--clean.manifest no.jsonl": "--clean.manifest .*existing file",
    "--export.calibrate no": "--export.calibrate takes no value; got 'no'",
    "--export.name a/b": "must be a plain file name",
    "--export.name a[1]": "must be a plain file name without any of",
    "--export.name who?": "must be a plain file name without any of",
    "--export.batch-sizes 0 8": "from 1 to 65,536, 1 to 100 values; got '0 8'",
    "--export.directory=~/models": "--export.directory: the ~ .*not expanded",
    "--runtime.devices 0,0": "different GPU numbers such as .*got '0,0'",
    "--runtime.gpu-memory 101%": "at least 1MiB, .*a share such as 80%",
    "--train.patience 2 --data.validation 0": "--train.patience monitors the validation loss",
    "--data.validation 0.5 --data.test 0.5": "plus --data.test must be below 1; got 1.0",
    "--runtime.replicas 3": "--train.batch-size 32 .*3 replicas",
    "--train.batch-size 30 --train.accumulate 4": "cannot be split into --train.accumulate 4",
    "--train.global-clipnorm 1 --train.clipvalue 1": "--train.global-clipnorm and --train.clipvalue",
    "--data.augment cutmix flip mixup": "--data.augment cutmix and .*mixup",
    "--runtime.deterministic --runtime.xla on": "--runtime.deterministic and --runtime.xla",
    "--runtime.devices 0,1 --runtime.replicas 3": "more than the 2 GPUs of --runtime.devices",
}


@pytest.mark.parametrize("words", REFUSED, ids=lambda words: ascii(words)[1:60])
def test_invalid_words_are_refused_in_one_line(words):
    with pytest.raises(UsageError, match=REFUSED[words]) as caught:
        configure(words.split(" "))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_values_may_look_like_flags_if_they_are_numbers_or_follow_an_equals_sign():
    config = configure(
        ["--export.name=-x", "--train.batch_size", "16", "--train.batch-size=8"]
    )
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


def test_help_of_a_recipe_has_one_line_for_each_option(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    text = shown(capsys, "digits", "--help")
    assert text == shown(capsys, "--help", "digits")
    lines = [line for line in text.splitlines() if line.startswith("  --")]
    assert max(map(len, text.splitlines())) <= 90 and "--recipe" not in text
    listed = {line.split()[0].replace("[no-]", "") for line in lines}
    short = {names[0]: flag for flag, names in cli_parser.short_flags(Config).items()}
    flags = [flag for flag in cli_parser.flags(Config) if "no-" not in flag]
    for flag in flags:
        assert {
            flag,
            short.get(flag),
            re.sub(r"\.(name|enabled)$", "", flag),
        } & listed, flag
    assert len(lines) == len(listed) and len(text.splitlines()) < 130
    for line in (
        f"  {'--epochs':30} Passes over the training split [40]",
        f"  {'--model':30} The architecture [convnet]",
        f"  {'--augment-on':30} Where images are augmented: on the host, by ... [auto]",
    ):
        assert line in lines
    assert (
        "  --[no-]export  " in text and "\ntrain: How the model is trained.\n" in text
    )
    monkeypatch.setenv("COLUMNS", "1")
    assert "--epochs" in shown(capsys, "digits", "--help")


def test_a_folder_does_not_hide_the_help_of_a_recipe(capsys, monkeypatch, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "1.txt").write_text("not in a class folder")
    monkeypatch.chdir(tmp_path)
    assert "usage: pipeline fit texts" in shown(capsys, "texts", "--help")


def test_help_of_a_section_shows_each_option_and_those_of_its_functions(
    capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "90")
    train = shown(capsys, "digits", "--help", "train")
    assert max(map(len, train.splitlines())) <= 90
    whole = " ".join(train.split())
    for part in (
        (
            "--train.epochs Passes over the training split. (a whole number from 1 to"
            " 1,000,000,000; default: 40)"
        ),
        "--train.synchronized-batch-norm, --train.no-synchronized-batch-norm Compute",
        "--train.optimizer adam: ",
        "--train.optimizer-options beta_1=VALUE ",
        (
            "--train.schedule-options warmup=VALUE Fraction of the steps over which the"
            " rate first "
        ),
    ):
        assert part in whole
    for flag, option in cli_parser.flags(Config).items():
        assert (f"  {flag}" in train) == (
            option.path[0] == "train" and option.switch is not False
        )
    pages = {
        (
            "digits",
            "--help",
            "model",
        ): (
            "--model.blocks Number of blocks; each halves height and "
            "width. (a whole number of at least 1; default: 3)"
        ),
        (
            "--model",
            "resnet",
            "--help",
            "model",
        ): "--model.depth Number of layers with weights,",
        (
            "digits",
            "--help",
            "augment",
        ): (
            "--data.augment crop padding=VALUE Pixels on each side; less than the"
            " image's shorter side. (a whole number of at least 0; default: 1)"
        ),
        (
            "--help",
            "learning-rate",
        ): "train: How the model is trained. --train.learning-rate Peak",
        (
            "--help",
            "--runtime.seed",
        ): "runtime: How the run uses the machine. --runtime.seed Seed",
        (
            "--help",
            "lr",
        ): "train: How the model is trained. --train.learning-rate Peak learning",
        (
            "digits",
            "--help",
            "blocks",
        ): (
            "max-pooling. --model.blocks Number of blocks; each halves height and"
            " width. (a whole number of at least 1; default: 3) --model.name detector:"
        ),
        ("--help", "resnet"): "resnet: Residual networks: ",
    }
    for words, part in pages.items():
        assert part in " ".join(shown(capsys, *words).split())
    with pytest.raises(UsageError, match="modl.*did you mean 'model'"):
        configure(["--help", "modl"])


def test_help_describes_a_registry_with_every_option(capsys):
    for kind in registry.REGISTRIES:
        text = " ".join(shown(capsys, "--help", kind).split())
        for name in registry.names(kind):
            function = registry.find(kind, name)
            after = text.partition(f"{name}: {function.summary}")[2]
            for option, about in function.options.items():
                assert about.meaning, (kind, name, option)
                about_it = (
                    f" {option} {about.meaning} ({type_hints.describe(about.hint)}; "
                )
                assert about_it in after, (kind, name)
                after = after.partition(about_it)[2]
    muon = shown(capsys, "--help", "pipeline.training.optim.optimizers.muon:muon")
    assert "\n  momentum\n" in muon and "default: 0.95)" in muon
    assert "required)" in shown(capsys, "--help", "application")


def test_the_name_of_a_class_may_contain_an_equals_sign():
    config = configure(["digits", "--train.class-weight", "a=b=2", "c==0.5"])
    assert config.train.class_weight == {"a=b": 2.0, "c=": 0.5}
    options = ["--train.metrics", "auc", "multi_label=true", "from_logits=false"]
    assert configure(["digits", *options]).train.metrics == {
        "auc": {"multi_label": True, "from_logits": False}
    }
