"""The plan of the recipe `photos`: what is chosen for which data, machine and time."""

import json
from pathlib import Path

import numpy as np
import pytest
from small import machine

from pipeline.config import command_line
from pipeline.data import image_sizes
from pipeline.runtime import environment, run_directory
from pipeline.training import plan


@pytest.fixture
def planned(workplace, monkeypatch, capsys):
    """Plans for `count` images of some detail and a machine of some speed; returns the
    config.
    """
    monkeypatch.setenv("KERAS_HOME", str(workplace / "keras"))
    monkeypatch.setattr(
        environment, "fast_precision", lambda: ("mixed_bfloat16", "planted")
    )

    def make(count, words="", detail=32, speed=1.0, seconds=None):
        images = np.zeros((count, 2, 2, 3), np.uint8)
        np.savez("images.npz", images=images, labels=np.arange(count) % 2)
        monkeypatch.setattr(image_sizes, "detail_size", lambda images: detail)
        monkeypatch.setattr(plan, "_seconds_per_pixel", lambda config: 7e-7 / speed)
        config = command_line.configure(["images.npz", *words.split()])
        config, chosen = plan.complete(config, machine(), seconds)
        assert config.runtime.precision == chosen.precision
        assert "" not in config.planned.values()
        return config, capsys.readouterr().out

    return make


def test_few_images_get_more_epochs_and_smaller_batches(planned):
    few, many = planned(300)[0].train, planned(40_000)[0].train
    assert few.epochs > many.epochs and few.batch_size < many.batch_size == 128
    assert few.learning_rate < many.learning_rate
    assert planned(10)[0].train.batch_size == 2


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


def test_what_is_given_stays_and_is_marked(planned):
    words = (
        "--epochs 7 --image-size 40 --model.name linear --runtime.precision float32"
        " --augment flip"
    )
    config, said = planned(4000, words)
    assert (config.train.epochs, config.data.image_size) == (7, (40, 40))
    assert config.model.name == "linear" and config.data.augment == {"flip": {}}
    assert config.runtime.precision == "float32"
    assert said.count(" (given)\n") == 5
    assert ": 1 epoch at " in planned(10, "--epochs 1")[1]


def test_a_resumed_run_keeps_its_plan(planned, workplace):
    before, _ = planned(4000, "--epochs 7")
    (workplace / "config.json").write_text(json.dumps(before.as_json()))
    again = command_line.configure(["images.npz", "--run-directory", str(workplace)])
    again = run_directory.continued(again)
    assert again.as_json() == {**before.as_json(), "run_directory": str(workplace)}
    assert plan.complete(again, machine())[0] == again  # the same on any machine


def test_weights_of_keras_in_its_cache_are_used(planned, workplace):
    config, said = planned(4000)
    assert config.model.name == "residual" and "weights=imagenet" in said
    file = workplace / "keras/models" / next(iter(plan._IMAGENET))
    file.parent.mkdir(parents=True)
    file.touch()
    tuned, _ = planned(4000)
    assert (
        tuned.model.name == "application"
        and Path(tuned.model.options["weights"]) == file
    )
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


def test_the_speed_of_the_machine_is_measured():
    config = command_line.configure(
        ["photos", "--model.widths", "4,8", "--runtime.precision", "float32"]
    )
    assert 1e-10 < plan._seconds_per_pixel(config) < 1e-3
