"""New processes: what they import, and settings of the user's account that belong to
other work.
"""

import json
import os

import pytest
from processes import run_python

from pipeline.config.sections import RuntimeConfig
from pipeline.runtime import cpu_info, environment
from pipeline.utils import files
from pipeline.utils.errors import UsageError

_STARTED = """
import gc, os, sys
os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
from pipeline.serving.client import Client
client = Client(sys.argv[1])
def answered():
    return client.predict(images=[[[[0] * 3] * 8] * 8])["class"].shape == (1,)
found = [answered()]
for address in ("grpc://127.0.0.1:1/m", "http://127.0.0.1:1/v1/models/m"):
    Client(address).close()
found.append("tensorflow" not in sys.modules)

from pipeline.config import command_line
from pipeline.runtime import environment
cpu = environment.cpu_info; real = cpu.onednn; cpu.onednn = lambda: found.append(True) or real()
full = lambda: gc.get_stats()[2]["collections"]
before = full()
environment.start(command_line.configure(["digits"]).runtime)
found.append(gc.isenabled() and full() - before <= 2)
found.append(gc.get_freeze_count() > 10**5)
model = [0]
model.append(model)
environment.import_tensorflow()
found.append(any(part is model for part in gc.get_objects()))
import keras, tensorflow as tf
print(keras.backend.backend(), keras.backend.floatx(), keras.backend.image_data_format())
example = tf.train.Example.FromString(tf.train.Example().SerializeToString())
found += [bool(tf.saved_model.load(sys.argv[1]).signatures), answered()]
print(*found)
"""


@pytest.fixture(scope="module")
def started(swift, tmp_path_factory):
    """The two lines of a process that asks a model, imports TensorFlow and asks again,
    with another backend and other types of Keras in the user's account.
    """
    folder = tmp_path_factory.mktemp("keras")
    values = {
        "backend": "jax",
        "floatx": "float64",
        "image_data_format": "channels_first",
    }
    (folder / "keras.json").write_text(json.dumps(values))
    other = {"KERAS_HOME": str(folder), "KERAS_BACKEND": "torch"}
    done = run_python("-c", _STARTED, swift, cwd=folder, env=other, fresh=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Reading SavedModel" not in done.stderr, "TensorFlow's log"
    return done.stdout.splitlines()


def test_another_backend_and_other_types_of_keras_are_not_taken(started):
    """None may change a result."""
    assert started[0].split() == ["tensorflow", "float32", "channels_last"]


def test_a_client_does_not_import_tensorflow_which_can_be_imported_afterwards(started):
    """Quickly: without the full garbage collections that Python would make meanwhile,
    and later.
    """
    assert started[1].split() == ["True"] * 9


def test_training_without_onednn_is_noted(monkeypatch):
    monkeypatch.setattr(cpu_info, "flags", lambda: {"avx2"})
    for is_on in (cpu_info.has_onednn(), True, False):
        monkeypatch.setattr(cpu_info, "has_onednn", lambda is_on=is_on: is_on)
        names = [
            decision.name for decision in environment.start(RuntimeConfig()).decisions
        ]
        assert ("oneDNN" in names) is not is_on


def test_float16_on_a_cpu_is_said_to_be_slow():
    options = RuntimeConfig(precision="mixed_float16", devices="cpu")
    decisions = environment.start(options).decisions
    (reason,) = [d.reason for d in decisions if d.value == "emulated"]
    assert reason.startswith("slow; ")


def test_settings_of_keras_that_a_run_replaces_are_said(monkeypatch):
    import keras

    assert environment._settings_of_user() == []
    monkeypatch.setattr(keras.config, "image_data_format", lambda: "channels_first")
    monkeypatch.setattr(keras.config, "floatx", lambda: "float16")
    assert environment._settings_of_user() == [
        ("floatx", "float32", "instead of float16: a run needs it"),
        ("data_format", "channels_last", "instead of channels_first: a run needs it"),
    ]


def test_a_run_does_not_start_in_the_scope_of_another_strategy():
    import tensorflow as tf

    refused = pytest.raises(
        UsageError, match="call it outside, and set --runtime.replicas"
    )
    with tf.distribute.OneDeviceStrategy("cpu:0").scope(), refused:
        environment.start(RuntimeConfig(devices="cpu"))


@pytest.mark.parametrize("home", ["~", "relative"])
def test_without_a_home_directory_keras_creates_no_directory_named_so(
    monkeypatch, home
):
    monkeypatch.setenv("KERAS_HOME", "")
    monkeypatch.delenv("KERAS_HOME")
    monkeypatch.setenv("HOME", home)
    environment.import_tensorflow()
    assert os.environ["KERAS_HOME"] == str(files.temporary_home() / "keras")
