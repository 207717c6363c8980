"""The script `bench`: one tiny run, and what cannot be measured is one line."""

import contextlib
import functools
import runpy

import keras
import pytest

from benchmarks.scripts.timing import peers, speed
from benchmarks.scripts.timing.rounds import MeasurementError
from pipeline.config import command_line, registry


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("echo '\"PyTorch 0\"'; echo Killed >&2; exit 3", "ended with code 3: Killed$"),
        (
            "echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1",
            "pip install torch",
        ),
        (
            'echo \'"PyTorch 0"\'; read line; echo \'{"error": "no compiler"}\'',
            "^no compiler$",
        ),
    ],
)
def test_a_peer_that_crashes_is_one_line(tmp_path, words, message):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{words}\n")
    python.chmod(0o700)
    made = functools.partial(peers.Peer, "torch", {})
    with (
        pytest.raises(MeasurementError, match=message),
        contextlib.closing(made(str(python))) as peer,
    ):
        peer.sample("eager float32", 0.1)
    with pytest.raises(
        MeasurementError, match="nowhere cannot be started: No such file"
    ):
        made("nowhere")


@pytest.mark.parametrize("name", peers._BOUNDS)
def test_the_peer_has_the_same_network(name):
    x = keras.Input((32, 32, 3))
    own = (
        {"name": "resnet", "options": {"depth": 18}}
        if name == "resnet18"
        else {"name": name}
    )
    features = registry.call("models", own["name"], own.get("options", {}), x)
    built = runpy.run_path(peers.SCRIPTS / "peer_keras.py")["_built"]
    spec = {"network": name, "options": {}, "classes": 10, "optimizer": "adam"}
    peer = built({**spec, "learning_rate": 0.1, "momentum": 0.0}, x.shape[1:])
    ours = keras.Model(x, keras.layers.Dense(10)(features))
    assert sorted(
        tuple(w.shape) for w in peer.weights if "seed" not in w.path
    ) == sorted(tuple(w.shape) for w in ours.weights if "seed" not in w.path)


def test_a_peer_that_has_ended_or_prints_text_fails_each_time(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '\"PyTorch 0\"'; read line; exit 9\n")
    python.chmod(0o700)
    with contextlib.closing(peers.Peer("torch", {}, str(python))) as peer:
        for message in ("ended with code 9", "has ended"):
            with pytest.raises(MeasurementError, match=message):
                peer.sample("eager float32", 0.1)
    with pytest.raises(MeasurementError, match="unexpected output: '.*peer_torch.py"):
        peers.Peer("torch", {}, "/bin/echo")


def test_gflop_of_a_training_step_counts_the_first_layer_once_and_others_twice():
    first, second = keras.layers.Conv2D(4, 3), keras.layers.Conv2D(2, 3)
    nested = keras.Sequential(
        [keras.Input((8, 8, 3)), first, second, keras.layers.Flatten()]
    )
    x = keras.Input((8, 8, 3))
    model = keras.Model(x, keras.layers.Dense(10)(nested(x)))
    macs = 2 * 36 * 27 * 4 + 3 * (16 * 36 * 2 + 32 * 10)
    assert speed.training_gflop(model) == pytest.approx(2e-9 * macs)

    class Mine(keras.layers.Layer):
        def build(self, shape):
            self.inner = keras.layers.Dense(3)
            self.inner.build(shape)

        def call(self, x):
            return keras.ops.matmul(x, self.inner.kernel)

    assert speed.training_gflop(keras.Model(x, Mine()(x))) == 0


def test_random_images_replace_data_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))
    config, said = speed.choose_data(
        command_line.recipe("cifar10_convnet"), False, tmp_path
    )
    assert config.source.name == "arrays" and said.startswith(
        "10,000 random images of 32x32x3 ("
    )
    digits = command_line.recipe("digits")
    assert speed.choose_data(digits, False, tmp_path) == (digits, "digits")
    assert "8x8x1 (--synthetic)" in speed.choose_data(digits, True, tmp_path)[1]
