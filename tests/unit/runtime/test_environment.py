"""New processes: what they import, and settings of the user's account that belong to
other work.
"""

import os

import pytest

from pipeline.config.sections import RuntimeConfig
from pipeline.runtime import cpu_info, environment
from pipeline.utils import files
from pipeline.utils.errors import UsageError


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

    refused = pytest.raises(UsageError, match="--runtime.replicas")
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
