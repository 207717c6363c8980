"""The files of a run contain nothing about the person, the machine or the
environment.
"""

import os
import socket
import zipfile

import numpy as np
import pytest
from conftest import images_and_labels

from pipeline.config import command_line
from pipeline.data import dataset
from pipeline.export import run_result
from pipeline.fit import fit
from pipeline.runtime import run_directory
from pipeline.training import preflight
from pipeline.utils import files
from pipeline.utils.errors import UsageError

PLANTED = {
    "USER": "planted-user-5c1d",
    "LOGNAME": "planted-user-5c1d",
    "HOSTNAME": "planted-host-9e2b",
    "SOME_API_KEY": "planted-secret-4d6f",
    "AWS_SECRET_ACCESS_KEY": "planted-secret-4d6f",
    "DATABASE_URL": "postgres://me:planted-password-1f@db",
}

NAMES = ["$a_{$", "ü 猫", "<b>"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A cleaned, cached and exported run in the home directory of a person."""
    folder = tmp_path_factory.mktemp("home") / "planted-home-7f3a"
    folder.mkdir()
    images, labels = images_and_labels(80, (8, 8, 1))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**PLANTED, "HOME": str(folder), "PWD": str(folder)}.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        np.savez(folder / "mine.npz", images=images, labels=labels, class_names=NAMES)
        changes = {
            "source": {"name": "arrays", "path": folder / "mine.npz"},
            "model": {"name": "tiny"},
            "data": {
                "cache": "disk",
                "cache_directory": folder / "cache",
                "image_size": (5, 7),
            },
            "clean": {"enabled": True},
            "run_directory": folder / "run",
            "export": {"directory": folder / "models"},
        }
        yield folder, fit("digits", train={"epochs": 1, "batch_size": 8}, **changes)


def everything(*folders):
    """(name, content) of all files; archives also unpacked."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder.parent))
            yield name, path.read_bytes() if path.is_file() else b""
            if path.is_file() and zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    for member in archive.namelist():
                        yield f"{name}/{member}", archive.read(member)


def test_no_file_or_name_contains_what_was_planted(ran):
    folder, run = ran
    assert str(run.export) == str(folder / "models/digits/1"), (
        "in memory a path is absolute"
    )
    seen = list(everything(folder / "run", folder / "models", folder / "cache"))
    kinds = {os.path.splitext(name)[1] for name, _ in seen}
    assert kinds >= {
        ".json",
        ".jsonl",
        ".html",
        ".png",
        ".npz",
        ".npy",
        ".scalars",
        ".index",
    }
    host = socket.gethostname()
    for name, content in seen:
        assert "planted" not in name and b"planted" not in content, name
        assert str(folder.parent).encode() not in content, name
        # Compressed pixels contain any short name by chance.
        assert len(host) <= 5 or (host not in name and host.encode() not in content), (
            name
        )


def test_resized_images_and_odd_class_names_are_exported(ran):
    _, run = ran
    assert (
        run.task.metadata["image_shape"] == [5, 7, 1]
        and run.result["verification"]["passed"]
    )
    assert set(run.test["per_class"]) == set(NAMES)
    answer = run.predict(images=np.zeros((1, 5, 7, 1), np.uint8))
    assert answer["label"][0] in NAMES


def test_paths_in_the_home_directory_are_found_again(ran, monkeypatch):
    folder, before = ran
    text = (folder / "run/config.json").read_text()
    assert '"path": "~/mine.npz"' in text and '"directory": "~/models"' in text
    again = command_line.read(folder / "run/config.json").changed(
        run_directory=folder / "run"
    )
    preflight.check(again)
    result = run_result.finished(
        again, run_directory.RunDirectory(folder / "run"), before.result["steps"]
    )
    assert result["export"] == str(folder / "models/digits/1")
    assert dataset.load(again).splits.keys() == {"train", "validation", "test"}
    monkeypatch.setenv("HOME", str(folder.parent))
    with pytest.raises(
        UsageError, match="--source.path"
    ):  # another home is another place
        preflight.check(again.changed(source={"path": folder.parent / "mine.npz"}))


def test_the_home_directory_is_abbreviated_in_every_text(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    values = {
        "a": ["/home/me/x", "in '/home/me', too", "/home/me"],
        "b": 3,
        "c": "/home/me-too/x",
    }
    short = {"a": ["~/x", "in '~', too", "~/"], "b": 3, "c": "/home/me-too/x"}
    assert (
        files.collapse_home(values) == short
        and files.expand_home("~/x") == "/home/me/x"
    )
    assert files.expand_home(["~", "~you/x", "a~/x"]) == ["~", "~you/x", "a~/x"]
