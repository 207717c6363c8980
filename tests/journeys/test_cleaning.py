"""Cleaning end to end: the command, and runs that apply its findings."""

import re
import shutil
from pathlib import Path

import damaged_images
import numpy as np
import pytest
from damaged_images import config, noise, save, source_of

from pipeline import clean
from pipeline.config import command_line
from pipeline.data import dataset
from pipeline.data.cleaning import apply, manifest
from pipeline.fit import fit
from pipeline.utils.errors import UsageError


@pytest.fixture
def folder(tmp_path):
    return damaged_images.pictures(tmp_path / "data")


def run(root, capsys, *more):
    words = ["digits", "--source.name", "folder", "--source.path", str(root), *more]
    code = clean.main(words)
    return code, capsys.readouterr().out.splitlines()


def test_the_command_writes_a_manifest_that_fit_applies(folder, workplace, capsys):
    (folder / "a/page.jpg").write_bytes(damaged_images.HTML)
    (folder / "a/gone.png").write_bytes(b"")
    save(folder / "b/again.png", noise(1))
    before = sorted(folder.rglob("*"))
    code, lines = run(folder, capsys)
    assert code == 0 and sorted(folder.rglob("*")) == before
    assert lines[:2] == ["importing  TensorFlow", f"opening    {folder}"]
    assert lines[2] == "scanning   43 examples"
    del lines[:3]
    assert lines[0].startswith(f"cleaning   {folder}: 43 examples in")
    assert lines[1].split() == ["reason", "examples", "action", "first", "example"]
    assert lines[2].startswith("undecodable         2  drop    a/gone.png (")
    assert lines[3] == "duplicate           1  drop    b/again.png = b/01.png"
    assert lines[4] == "manifest   cleaned/digits-1/manifest.jsonl"
    assert lines[5] == "gallery    cleaned/digits-1/gallery.html"
    assert (
        lines[6] == "next       pipeline fit digits --source.name folder"
        f" --source.path {folder} --clean.manifest cleaned/digits-1/manifest.jsonl"
    )
    written = manifest.read(Path("cleaned/digits-1/manifest.jsonl"))
    applied = config(folder, manifest=Path("cleaned/digits-1/manifest.jsonl"))
    assert set(apply.clean(source_of(folder), applied).excluded) == {
        e["id"] for e in written
    }
    assert len(written) == 3
    for entry in written:
        (folder / entry["file"]).unlink()
    assert run(folder, capsys)[1][-1] == "gallery    cleaned/digits-2/gallery.html"


def test_photos_of_different_sizes_are_searched(folder, workplace, capsys):
    save(folder / "b/again.png", noise(1))
    save(folder / "b/large.png", np.zeros((20, 30, 3), np.uint8))
    assert clean.main([str(folder)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "duplicate 1 drop b/again.png = b/01.png" in lines


def test_a_table_is_cleaned_by_the_command_and_by_a_run(workplace, capsys):
    numbers = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    numbers[7] = numbers[3]
    numbers[9] = numbers[5]
    targets = numbers[:, 0].copy()
    targets[9] += 1
    np.savez("table.npz", features=numbers, targets=targets)
    assert clean.main(["table.npz", "--clean.directory", "found"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"duplicate +1  drop +example 7 of table.npz = example 3", said)
    assert re.search(r"two targets +2  drop +example 5 of table.npz = example 9", said)
    page = Path("found/gallery.html").read_text()
    assert page.count("<article>") == 3 and "<img" not in page
    settings = command_line.request(["table.npz", "--clean.enabled"]).config
    loaded = dataset.load(settings)
    assert sum(map(len, loaded.splits.values())) == 57
    assert set(loaded.cleaning.excluded) == {5, 7, 9}
    applied = settings.changed(
        clean={"enabled": False, "manifest": "found/manifest.jsonl"}
    )
    assert dataset.load(applied).cleaning.excluded == loaded.cleaning.excluded


def notes(settings):
    """The notes on copies when the data are loaded, and the splits."""
    found = dataset.load(settings)
    lines = [
        str(decision)
        for decision in found.decisions
        if "exact copies" in decision.value
    ]
    return lines, found.splits


def test_copies_across_splits_are_noted_under_every_cache(folder, workplace):
    for number in range(20):
        shutil.copy(folder / f"a/{2 * number:02}.png", folder / f"a/copy {number}.png")
    uncached = config(folder).changed(
        data={"cache": "none", "cache_directory": workplace / "c"}
    )
    assert notes(uncached)[0] == [], "nothing is decoded before training"
    (note,), splits = notes(uncached.changed(data={"cache": "memory"}))
    before, expected = set(), []
    for name, split in splits.items():
        images = [image.tobytes() for image in split.column("image")]
        count = sum(image in before for image in images)
        expected += [f"{count} in {name}"] * (count > 0)
        before |= set(images)
    assert len(expected) == 2, "no copy is in another split"
    assert note.startswith(
        f"exact copies of examples in another split: {', '.join(expected)} (--clean"
    )
    cached = uncached.changed(data={"cache": "disk"})
    assert notes(cached)[0] == notes(cached)[0] == [note], (
        "the second time from the cache"
    )
    for handled in ({"enabled": True, "near": False}, {"allow_leakage": True}):
        assert notes(cached.changed(clean=handled))[0] == []


def test_leakage_stops_a_run_until_the_user_decides(tmp_path, workplace, capsys):
    root = damaged_images.split_pictures(tmp_path / "data")
    save(root / "train/a/tested.png", noise(18))
    source, written = source_of(root), Path("cleaned/digits-1/manifest.jsonl")
    message = (
        r"leakage: train/a/tested.png in train is also in test:"
        r' .*clean=\{"drop_leakage": '
    )
    with pytest.raises(UsageError, match=message):
        fit(config(root, enabled=True, near=False))
    assert not Path("runs").exists() and not Path("saved_models").exists()
    code, lines = run(root, capsys)
    assert code == 1 and lines[-1].startswith(
        "STOPS      leakage: train/a/tested.png in train is"
    )
    (entry,) = manifest.read(written)
    assert entry["action"] == "stop" and entry["of_split"] == "test"
    with pytest.raises(UsageError, match="leakage"):
        apply.clean(source, config(root, manifest=written))
    excluded = apply.clean(
        source, config(root, manifest=written, drop_leakage=True)
    ).excluded
    assert excluded == {entry["id"]: "leakage"}
    assert (
        apply.clean(source, config(root, manifest=written, allow_leakage=True)).excluded
        == {}
    )


def test_the_directory_must_be_new_and_outside_of_the_data(folder, tmp_path):
    manifest.write(tmp_path / "manifest.jsonl", [])
    words = [
        "--source.name",
        "folder",
        "--source.path",
        str(folder),
        "--clean.directory",
    ]
    with pytest.raises(UsageError, match="contains a manifest.*choose"):
        clean.main([*words, str(tmp_path)])
    with pytest.raises(UsageError, match="the data"):
        clean.main([*words, str(folder / "new")])
    assert not (folder / "new").exists()
