"""The plan of the recipe `photos`: what is chosen for which data, machine and time."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from toy_problem import machine

from pipeline.config import command_line
from pipeline.config.request import Request
from pipeline.config.sections import SourceConfig
from pipeline.data import dataset, image_sizes
from pipeline.data.array_source import ArraySource
from pipeline.recipes.recordings import recordings
from pipeline.runtime import dtype_policy
from pipeline.training import plan, preflight
from pipeline.training.resolve import resolve
from pipeline.utils.errors import UsageError


@pytest.fixture
def planned(workplace, monkeypatch, capsys):
    """Plans for `count` images of some detail and a machine of some speed; returns the
    config.
    """
    monkeypatch.setenv("KERAS_HOME", str(workplace / "keras"))
    monkeypatch.setattr(
        dtype_policy, "fast_policy", lambda: ("mixed_bfloat16", "planted")
    )

    def make(
        count,
        words="",
        detail=32,
        speed=1.0,
        seconds=None,
        replicas=1,
        channels=3,
        **targets,
    ):
        images = np.zeros((count, 2, 2, channels), np.uint8)
        targets = targets or {"labels": np.arange(count) % 2}
        np.savez("images.npz", images=images, **targets)
        monkeypatch.setattr(image_sizes, "detail_size", lambda images: detail)
        monkeypatch.setattr(plan, "_seconds_per_pixel", lambda *_: 7e-7 / speed)
        request = command_line.request(["images.npz", *words.split()])
        devices = SimpleNamespace(num_replicas_in_sync=replicas, scope=nullcontext)
        config = resolve(request, machine(strategy=devices), seconds)
        of_pretrained = {"train.freeze", "train.freeze_epochs", "train.layer_rates"}
        open_options = {*request.planned} - of_pretrained
        assert config.reasons.keys() - of_pretrained == open_options
        return config, capsys.readouterr().out

    return make


def test_few_images_get_more_epochs_and_smaller_batches(planned):
    few, many = planned(300)[0].train, planned(40_000)[0].train
    assert few.epochs > many.epochs and few.batch_size < many.batch_size == 128
    assert few.learning_rate < many.learning_rate
    assert planned(10)[0].train.batch_size == 2


def test_the_network_and_the_loss_follow_what_is_predicted(planned):
    masks, _ = planned(80, masks=np.zeros((80, 2, 2), np.uint8))
    assert masks.model.name == "unet" and masks.train.label_smoothing == 0
    numbers, output = planned(80, targets=np.ones(80))
    assert "about 56 training images)" in output
    assert numbers.model.name == "residual" and numbers.train.label_smoothing == 0
    assert planned(80)[0].train.label_smoothing == 0.1


def test_images_of_classes_that_are_seen_often_are_mixed(planned):
    often, output = planned(4000)
    epochs = often.train.epochs
    mixing = {"probability": 0.5, "epochs": round(0.85 * epochs)}
    assert often.data.augment["cutmix"] == mixing
    assert f"each is seen {often.train.epochs} times" in output
    seldom, _ = planned(4000, "--epochs 19")
    numbers, _ = planned(80, targets=np.ones(80))
    odd, _ = planned(4000, "--batch-size 30 --accumulate 2")
    for config in (seldom, numbers, odd):
        assert "cutmix" not in config.data.augment


@pytest.mark.parametrize(("channels", "fill"), [(3, "reflect"), (1, "zero")])
def test_the_border_of_gray_images_stays_empty(planned, channels, fill):
    augment = planned(300, channels=channels)[0].data.augment
    assert list(augment)[:2] == ["alternating_flip", "crop"]
    assert augment["crop"]["fill"] == fill


def test_the_batch_divides_among_replicas_and_micro_batches(planned):
    assert planned(4000)[0].train.batch_size == 64
    for words, replicas, size in (
        ("--gpus 3", 3, 60),
        ("--accumulate 3", 1, 60),
        ("--replicas 8 --accumulate 16", 8, 128),
    ):
        assert planned(4000, words, replicas=replicas)[0].train.batch_size == size
    assert planned(10, replicas=4)[0].train.batch_size == 4  # and in `auto`


def test_the_average_of_a_long_run_has_a_momentum_below_one(planned):
    few, many = (planned(4000, f"--epochs {n}")[0].train for n in (10, 10**6))
    assert few.ema == 0.938 and 1 - 1e-6 < many.ema < 1 - 1e-7


def test_the_average_of_generated_pictures_follows_the_steps(workplace):
    images = np.zeros((40_000, 8, 8, 1), np.uint8)
    np.savez("images.npz", images=images, labels=np.zeros(40_000, int))
    for words, momentum in (("--epochs 50", 0.99924), ("--steps 100", 0.75)):
        words = ["generation", "--source.path", "images.npz", *words.split()]
        config = resolve(command_line.request(words), machine())
        assert config.train.ema == momentum and "train.ema" in config.reasons
    words = [*words, "--ema", "0.9"]
    config = resolve(command_line.request(words), machine())
    assert config.train.ema == 0.9 and "train.ema" not in config.reasons


def test_the_size_follows_the_detail_and_the_time(planned):
    def size(**given):
        return planned(4000, **given)[0].data.image_size[0]

    assert size() == 48 and size(speed=2.0) == 64 and size(detail=48, speed=10.0) == 96
    assert (
        size(detail=224)
        < size(detail=224, seconds=3600.0)
        < size(detail=224, speed=100.0)
    )
    assert size(speed=1e-3) == 32  # the fewest


def test_a_time_limit_shrinks_the_plan_and_the_expected_time_is_printed(planned):
    config, said = planned(4000)
    assert said.startswith("plan       about ") and "images/s" in said.split("\n")[0]
    short, said = planned(4000, seconds=200.0)
    assert "--train.epochs" in said and "as many as fit into the time limit" in said
    cost = (e := short.train.epochs) * short.data.image_size[0] ** 2
    assert e < config.train.epochs and cost < config.train.epochs * 48**2 / 3


def test_what_is_set_stays(planned):
    words = (
        "--epochs 7 --image-size 40 --model.name linear --runtime.precision float32"
        " --augment flip"
    )
    config, said = planned(4000, words)
    assert (config.train.epochs, config.data.image_size) == (7, (40, 40))
    assert config.model.name == "linear" and config.data.augment == {"flip": {}}
    assert config.runtime.precision == "float32"
    assert "train.epochs" not in config.reasons and "--train.epochs" not in said
    assert said.count("plan ") == 1 + len(config.reasons) == 6
    assert ": 1 epoch at " in planned(10, "--epochs 1")[1]


def test_a_resumed_run_keeps_its_plan(planned, workplace, monkeypatch):
    before, _ = planned(4000, "--epochs 7")
    (workplace / "run").mkdir()
    (workplace / "run/config.json").write_text(json.dumps(before.as_json()))
    monkeypatch.setattr(plan, "photos", None)  # it does not plan again
    words = ["images.npz", "--run-directory", "run"]
    request = command_line.request(words)
    preflight.check(request.config, request.planned)
    again = resolve(request, machine())
    assert again.as_json() == {**before.as_json(), "run_directory": "run"}
    resumed = command_line.request(["--resume", "run"])
    assert resumed.planned == () and resolve(resumed, machine()) == again
    longer = command_line.request([*words, "--epochs", "8"])
    with pytest.raises(UsageError, match="--train.epochs.*--force"):
        preflight.check(longer.config, longer.planned)


def test_the_plan_uses_the_source_of_the_run(planned, monkeypatch):
    before, _ = planned(300)
    request = command_line.request(["images.npz"])
    source = dataset.create_source(request.config)
    monkeypatch.setattr(dataset, "create_source", None)
    assert resolve(request, machine(), source=source).data == before.data


def test_a_saved_plan_is_used_again_without_the_reasons_of_what_is_set(planned):
    before, _ = planned(4000)
    Path("config.json").write_text(json.dumps(before.as_json()))
    words = ["--config", "config.json", "--epochs", "3"]
    config = resolve(command_line.request(words), machine())
    assert config.train.epochs == 3 and config.train.ema == before.train.ema
    assert before.reasons.keys() - config.reasons.keys() == {"train.epochs"}


def test_a_dry_run_shows_the_plan_and_takes_two_steps(planned, capsys):
    whole, said = planned(4000)
    request = command_line.request(["images.npz", "--dry-run"])
    config = resolve(request, machine(), folder=Path("dry"))
    assert capsys.readouterr().out == said
    assert (config.train.steps, config.run_directory) == (2, Path("dry/run"))
    assert config.train.batch_size == whole.train.batch_size


def test_weights_of_keras_in_its_cache_are_used(planned, workplace):
    config, said = planned(4000)
    assert config.model.name == "residual" and "--model EfficientNetB0" in said
    file = workplace / "keras/models" / next(iter(plan._IMAGENET))
    file.parent.mkdir(parents=True)
    file.touch()
    tuned, _ = planned(4000)
    assert (
        tuned.model.name == "application"
        and Path(tuned.model.options["weights"]) == file
    )
    assert config.train.freeze == () and "--train.freeze" not in said
    assert tuned.train.freeze == ("backbone",)
    assert 5 * tuned.train.freeze_epochs == pytest.approx(tuned.train.epochs, abs=3)
    assert tuned.train.epochs < config.train.epochs and tuned.data.image_size >= (
        96,
        96,
    )
    assert tuned.train.learning_rate < config.train.learning_rate / 5


def test_the_network_follows_the_size_or_the_run_that_has_its_weights(
    planned, workplace
):
    small, large = (planned(4000, f"--image-size {side}")[0] for side in (32, 96))
    assert small.model.options["stem_stride"] == 1 and large.model.options == {}
    (workplace / "earlier").mkdir()
    (workplace / "earlier/config.json").write_text(json.dumps(small.as_json()))
    tuned, said = planned(4000, "--image-size 96 --model.weights earlier")
    assert tuned.model.options["stem_stride"] == 1 and "(as in --model.weights)" in said
    (workplace / "earlier/config.json").write_text("{")
    assert (
        planned(4000, "--image-size 96 --model.weights earlier")[0].model.options == {}
    )


@pytest.mark.parametrize(
    "count, words, epochs",
    [
        (6000, "", 40),
        (2000, "", 96),
        (200, "", 200),
        (200, "--epochs 7", 7),
        (200, "--train.steps 9", 40),
    ],
)
def test_few_texts_get_more_epochs(workplace, count, words, epochs):
    rows = [f"text {number},{'ab'[number % 2]}" for number in range(count)]
    Path("texts.csv").write_text("\n".join(["text,label", *rows]))
    request = command_line.request(["texts.csv", *words.split()])
    config = resolve(request, machine())
    assert config.recipe == "texts" and config.train.epochs == epochs
    is_longer = not words and epochs > 40
    assert list(config.reasons) == ["train.epochs"] * is_longer


@pytest.mark.parametrize(("count", "batch_size"), [(400, 32), (40, 8), (24, 8)])
def test_few_recordings_get_batches_that_they_fill(count, batch_size, tmp_path):
    data = SourceConfig(name="folder", options={"path": tmp_path})
    request = recordings(data)
    source = ArraySource({"audio": np.zeros((count, 4)), "label": np.arange(count) % 2})
    train = plan.enough_epochs(request, source).train
    assert train.batch_size == batch_size
    by_user = Request(request.config.changed(train={"batch_size": 32}), ())
    assert plan.enough_epochs(by_user, source).train.batch_size == 32
