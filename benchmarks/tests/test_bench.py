"""The script `bench`: one tiny run, and what cannot be measured is one line."""

import contextlib
import errno
import functools
import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import keras
import pytest
from processes import run_module

from benchmarks.scripts import bench
from benchmarks.scripts.timing import peers, processes, record, speed
from benchmarks.scripts.timing.rounds import MeasurementError
from pipeline.config import command_line, registry
from pipeline.utils.errors import UsageError

TINY = (
    "digits --model lenet --limit 100 --data.augment --batch-size 16"
    " --runtime.precision float32"
)
SHORT = [*TINY.split(), "--rounds", "1", "--seconds", "0.01", "--only"]


def test_every_line_is_measured_and_a_missing_peer_named(
    workplace, monkeypatch, capsys
):
    none = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(processes, "importlib", none)
    assert bench.main([*SHORT, "training,serving", "--against", "keras", "torch"]) == 0
    said = capsys.readouterr().out
    assert "PyTorch    missing: " in said.partition("measuring")[0]
    written = Path(said.split()[-1])
    assert written.parent.parent == Path("benchmarks/records")
    values = json.loads(written.read_text())
    lines = {f"{line['part']} {line['name']}": line for line in values["lines"]}
    unmeasured = {line["name"] for line in lines.values() if line["value"] is None}
    assert unmeasured == {"data", "lenet", "resident step, no augmentation", "torch"}
    assert (
        "pip install torch numpy; then add --torch-python"
        in lines["training torch"]["note"]
    )
    compared = {name for name, line in lines.items() if line["bound"]}
    assert {"training end to end", "training gradient_tape"} <= compared
    assert "serving batch 1 (repeated)" in compared
    assert lines["training keras fit, NumPy"]["ratio"][0] > 0
    assert (
        lines["serving batch 64"]["note"].startswith("p50 ")
        and "Keras 3" in values["peers"]
    )


def test_what_cannot_be_measured_or_written_is_one_line(workplace, monkeypatch, capsys):
    small = ["digits", "--data.limit", "20", "--only", "training", "--rounds", "1"]
    assert bench.main(small) == 1
    assert (
        "--train.batch-size 32: the split 'train' has only 1" in capsys.readouterr().out
    )
    full = OSError(errno.ENOSPC, "No space left on device", "benchmarks")
    monkeypatch.setattr(
        record.files, "write_json", lambda *_: (_ for _ in ()).throw(full)
    )
    with pytest.raises(OSError, match="No space left on device"):
        bench.main(small)
    assert "not measured" in capsys.readouterr().out  # the table comes first
    (workplace / "file").touch()
    for words, message in {
        ("--directory", "file"): "--directory: file is not a directory",
        ("--rounds", "0"): "--rounds must be a whole number from 1",
        (
            "--only",
            "training",
            "speed",
        ): "--only must be values separated by commas, each one of",
        ("nothing", "--rounds", "1"): "unknown recipe",
        ("--onyl", "training"): "unknown option '--onyl'; did you mean '--only'",
        ("--torch-python", "nowhere"): "--torch-python: nowhere is not a program",
    }.items():
        with pytest.raises(UsageError, match=message):
            bench.main(list(words))


def test_help_and_errors_do_not_import_tensorflow(workplace):
    for words in (["--help"], ["digits", "--help"], ["digits", "--epochs", "many"]):
        done = run_module(
            "benchmarks.scripts.bench",
            *words,
            cwd=workplace,
            options=["-X", "importtime"],
        )
        assert done.returncode == (2 if "many" in words else 0)
        assert not {"tensorflow", "keras", "numpy"} & set(done.stderr.split())


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
