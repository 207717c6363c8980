"""Cleaning end to end: the command, and runs that apply its findings."""

import json
from pathlib import Path

import damaged_images
import pytest
from damaged_images import noise, save

from pipeline.data.cleaning import apply, manifest
from pipeline.fit import fit
from pipeline.utils.errors import UsageError


@pytest.fixture
def folder(tmp_path):
    return damaged_images.pictures(tmp_path / "data")


def test_a_run_with_damaged_files_completes_and_names_them(folder, workplace):
    good = save(folder / "a/good.jpg", noise(99)).read_bytes()
    paths = damaged_images.damaged(folder / "b", good, 14)
    changes = {
        "source": {"name": "folder", "path": folder},
        "data": {"augment": {}, "image_size": (8, 8)},
        "model": {"name": "tiny"},
        "train": {"epochs": 1, "batch_size": 8},
        "export": {"enabled": False},
        "log": {"tensorboard": False},
        "run_directory": "run",
    }
    with pytest.raises(
        UsageError, match=r'b/.* cannot be decoded: .*clean=\{"enabled": '
    ):
        fit("digits", **changes)
    first = fit("digits", clean={"enabled": True}, **changes)
    entries = manifest.read(Path("run/manifest.jsonl"))
    assert {e["file"] for e in entries} == {f"b/{path.name}" for path in paths}
    assert sum(len(split) for split in first.splits.values()) == 41
    decisions = json.loads(Path("run/decisions.json").read_text())
    (decision,) = [d for d in decisions if d["name"] == "cleaning"]
    assert decision["value"] == "14 undecodable excluded"
    assert Path("run/gallery.html").read_text().count("<article>") == 14
    # A resumed run keeps its manifest, whatever the directory contains by now.
    edited = [{**entry, "reason": "mine"} for entry in entries]
    manifest.write(Path("run/manifest.jsonl"), edited)
    again = apply.clean(None, first.config)
    assert set(again.excluded.values()) == {"mine"} and again.findings is None
