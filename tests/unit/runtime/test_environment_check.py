"""The command `doctor`: problems of the environment are found, and wrong requests
refused.
"""

import builtins
import collections
import io
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from pipeline import doctor
from pipeline.runtime import cpu_info, environment_check, gpu_info
from pipeline.utils.errors import UsageError

SEEN = '[["NVIDIA H100", [9, 0]]]'


@pytest.fixture
def probe(monkeypatch):
    """Replaces the process that imports TensorFlow by one with this outcome."""

    def replace(stdout=SEEN, stderr="", code=0):
        done = subprocess.CompletedProcess([], code, stdout, stderr)
        monkeypatch.setattr(environment_check.subprocess, "run", lambda *_, **__: done)

    monkeypatch.setattr(gpu_info, "memory", lambda _: [])
    monkeypatch.setattr(gpu_info, "driver_version", lambda *_: None)
    replace()
    return replace


@pytest.fixture
def versions(monkeypatch):
    """Changes the installed versions; None is not installed."""
    real = environment_check.installed_version

    def change(**changed):
        changed = {name.replace("_", "-"): version for name, version in changed.items()}
        found = lambda name: changed[name] if name in changed else real(name)  # noqa: E731
        monkeypatch.setattr(environment_check, "installed_version", found)
        needed = {
            "keras-savedmodel-pipeline": ["tensorflow>=2.21,<2.22", "keras>=3.15.1,<4"],
            "tensorflow": ["protobuf>=6", "numpy>=1.26", "absent; extra == 'x'"],
        }
        monkeypatch.setattr(environment_check.metadata, "requires", needed.get)

    return change


def problems(status="error"):
    """Name -> (value, remedy) of the findings with this status."""
    found = environment_check.check()
    return {f.name: (f.value, f.remedy) for f in found if f.status == status}


def test_wrong_versions_and_packages_are_errors(probe, versions, capsys):
    own = {"keras_savedmodel_pipeline": "1"}
    versions(
        tensorflow="2.20.0",
        keras="3.14.0",
        protobuf="5.0",
        tensorflow_cpu="2.21.0",
        **own,
    )
    found = problems()
    assert "tensorflow 2.20.0, tensorflow-cpu 2.21.0" in found["TensorFlow packages"]
    assert found["keras"][0].startswith("3.14.0, but ")
    assert found["keras"][1] == "pip install 'keras<4,>=3.15.1'"
    assert found["tensorflow"][1] == "pip install 'tensorflow<2.22,>=2.21'"
    assert "5.0, but tensorflow needs" in found["protobuf"][0]
    assert doctor.main([]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("checks failed")
    versions(numpy=None)
    assert problems()["numpy"][0] == "not installed, but tensorflow needs >=1.26"
    versions(tensorflow=None, **own)
    assert problems().keys() == {"tensorflow"}


def test_other_problems_are_found(probe, monkeypatch, tmp_path):
    monkeypatch.setattr(environment_check.sys, "version_info", (3, 10, 1))
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "absent/data"))
    memory = collections.namedtuple("Memory", "available total")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(1 << 30, 8 << 30))
    monkeypatch.setattr(cpu_info, "flags", lambda: {"sse"})
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != Path.cwd())
    disk = collections.namedtuple("Disk", "free")
    monkeypatch.setattr(environment_check.shutil, "disk_usage", lambda _: disk(0))
    assert problems().keys() == {"Python", "CPU", "current directory"}
    warnings = problems("warning")
    places = {"memory", "temporary directory", "TFDS data directory"}
    assert warnings.keys() == {"TF_USE_LEGACY_KERAS", *places}
    assert "--data.cache disk" in warnings["memory"][1]


@pytest.mark.parametrize(
    ("outcome", "value", "remedy"),
    [
        (
            {"stderr": "a\nImportError: no GLIBC", "code": 1},
            "ImportError: no GLIBC",
            "pip install",
        ),
        ({"code": -signal.SIGILL}, "ended by SIGILL", "a CPU with AVX"),
    ],
)
def test_a_broken_tensorflow_is_reported(probe, outcome, value, remedy):
    probe(stdout="", **outcome)
    found = problems()["import tensorflow"]
    assert found[0] == value and remedy in found[1]


def test_gpus_and_missing_libraries(probe, monkeypatch):
    monkeypatch.setattr(
        gpu_info, "memory", lambda _: [gpu_info.Memory(70 << 30, 80 << 30)]
    )
    gpu = problems("ok")["GPU 0"][0]
    assert gpu == "NVIDIA H100, compute capability 9.0, 70.0 GiB of 80.0 GiB free"
    probe(stdout="[]")
    assert "training uses the CPU" in problems("ok")["GPU"][0]
    monkeypatch.setattr(gpu_info, "driver_version", lambda *_: "550.1.2")
    monkeypatch.setattr(gpu_info, "_opens", lambda name: "cudnn" not in name)
    assert problems("ok")["NVIDIA driver"][0] == "550.1.2"
    assert (
        "libcudnn.so.9 cannot be opened: pip install" in problems("warning")["GPU"][1]
    )
    assert problems("ok")["CUDA libraries"][0] == "missing"
    monkeypatch.setattr(gpu_info, "_opens", lambda *_: True)
    assert problems("ok")["CUDA libraries"][0] == "found"


def test_cpu_flags_are_read_and_turn_onednn_on(monkeypatch):
    text = "processor: 0\nflags\t\t: fpu avx avx2\n"
    monkeypatch.setattr(builtins, "open", lambda *_, **__: io.StringIO(text))
    monkeypatch.delenv(name := "TF_ENABLE_ONEDNN_OPTS", raising=False)
    with cpu_info.onednn():
        assert os.environ[name] == "1" and {"avx", "avx2"} <= cpu_info.flags()
    assert name not in os.environ


def test_arguments_are_refused():
    with pytest.raises(UsageError, match="takes no arguments; got '--gpu'"):
        doctor.main(["--gpu"])
