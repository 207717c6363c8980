"""The files of a run contain nothing about the person, the machine or the
environment.
"""

import json
import os
import shutil
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest
from random_images import images_and_labels

from pipeline.config import command_line
from pipeline.data import dataset
from pipeline.fit import fit
from pipeline.training import preflight
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
    """A cleaned, cached and exported run in the home directory of a person, started
    there with relative paths.
    """
    folder = tmp_path_factory.mktemp("home") / "planted-home-7f3a"
    folder.mkdir()
    images, labels = images_and_labels(80, (8, 8, 1))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**PLANTED, "HOME": str(folder), "PWD": str(folder)}.items():
            patch.setenv(name, value)
        patch.delenv("XDG_CACHE_HOME", raising=False)
        patch.chdir(folder)
        np.savez("mine.npz", images=images, labels=labels, class_names=NAMES)
        changes = {
            "source": {"name": "arrays", "path": Path("mine.npz")},
            "model": {"name": "tiny"},
            "data": {"cache": "disk", "image_size": (5, 7)},
            "clean": {"enabled": True},
            "run_directory": Path("run"),
            "export": {"directory": Path("models")},
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
    folder, _ = ran
    cache = folder / ".cache/pipeline"
    contents = list(everything(folder / "run", folder / "models", cache))
    kinds = {os.path.splitext(name)[1] for name, _ in contents}
    assert kinds >= {
        ".json",
        ".jsonl",
        ".html",
        ".png",
        ".npz",
        ".npy",
        ".pipeline",
        ".index",
    }
    host = socket.gethostname()
    for name, content in contents:
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
    prediction = run.predict(images=np.zeros((1, 5, 7, 1), np.uint8))
    assert prediction["label"][0] in NAMES


def test_paths_are_stored_as_they_were_written(ran, tmp_path):
    folder, run = ran
    stored = json.loads((folder / "run/config.json").read_text())
    assert stored["source"]["options"]["path"] == "mine.npz"
    assert stored["export"]["directory"] == "models"
    assert run.result["export"] == "models/digits/1"
    again = command_line.read(Path("run/config.json"))
    assert dataset.load(again).splits.keys() == {"train", "validation", "test"}
    copy = shutil.copy("mine.npz", tmp_path)
    moved = again.changed(source={"path": Path(copy)})
    assert moved.as_json()["source"]["options"]["path"] == copy
    preflight.check(again.changed(run_directory=Path("run")))
    with pytest.raises(UsageError, match="--source.path"):
        preflight.check(moved.changed(run_directory=Path("run")))
