"""The command `doctor`: problems of the environment are found, and wrong requests refused."""

import collections
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from pipeline import doctor
from pipeline.runtime import environment_check
from pipeline.utils.errors import UsageError

SEEN = '[["NVIDIA H100", [9, 0]]]'


@pytest.fixture
def probe(monkeypatch):
    """Replaces the process that imports TensorFlow by one with this outcome."""

    def replace(stdout=SEEN, stderr="", code=0):
        done = subprocess.CompletedProcess([], code, stdout, stderr)
        monkeypatch.setattr(environment_check.subprocess, "run", lambda *_, **__: done)

    replace()
    return replace


def problems(status="error"):
    """Name -> (value, remedy) of the findings with this status."""
    found = environment_check.check()
    return {f.name: (f.value, f.remedy) for f in found if f.status == status}


def test_this_environment_is_usable(capsys):
    assert doctor.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["status", "check", "found", "remedy"]
    assert "import tensorflow" in "".join(lines) and lines[-1] == "the environment is usable"


def test_problems_are_found(probe, monkeypatch, capsys):
    monkeypatch.setattr(environment_check, "_version", {"tensorflow": None, "keras": "3.14.0"}.get)
    monkeypatch.setattr(environment_check.sys, "version_info", (3, 10, 1))
    memory = collections.namedtuple("Memory", "available total")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(1 << 30, 8 << 30))
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != Path.cwd())
    disk = collections.namedtuple("Disk", "free")
    monkeypatch.setattr(environment_check.shutil, "disk_usage", lambda _: disk(0))
    found = problems()
    assert found.keys() == {"Python", "tensorflow", "keras", "current directory"}
    assert found["tensorflow"] == ("not installed", "pip install 'tensorflow>=2.21,<2.22'")
    assert found["keras"] == ("3.14.0", "pip install 'keras>=3.15.1,<4'")
    assert "--data.cache disk" in problems("warning")["memory"][1]
    assert doctor.main([]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("checks failed")


@pytest.mark.parametrize(
    ("outcome", "value", "remedy"),
    [
        ({"stderr": "a\nImportError: no GLIBC", "code": 1}, "ImportError: no GLIBC", "pip install"),
        ({"code": -signal.SIGILL}, "ended by SIGILL", "a CPU with AVX"),
    ],
)
def test_a_broken_tensorflow_is_reported(probe, outcome, value, remedy):
    probe(stdout="", **outcome)
    found = problems()["import tensorflow"]
    assert found[0] == value and remedy in found[1]


def test_gpus_are_named(probe, monkeypatch):
    monkeypatch.setattr(environment_check.gpu_info, "missing_gpu", lambda: None)
    assert problems("ok")["GPU 0"][0] == "NVIDIA H100, compute capability 9.0"
    probe(stdout="[]")
    assert "training uses the CPU" in problems("ok")["GPU"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model tiny", "'--model' is only understood with --parity"),
        ("--parity --model tini", "unknown model 'tini'; did you mean 'tiny'?"),
        ("--parity=digits --replicas 3", "cannot be divided equally among 3 replicas"),
    ],
)
def test_wrong_requests_are_refused(words, message):
    with pytest.raises(UsageError, match=message):
        doctor.main(words.split())
