"""Cleaning as a user meets it: what a run and the command make of what was found."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY
from PIL import Image
from unclean import (
    HTML,
    SHAPE,
    SHORT,
    config,
    damaged,
    found_in,
    noise,
    save,
    split_folders,
)

from pipeline import clean
from pipeline.config import registry
from pipeline.data import batching, dataset
from pipeline.data.cleaning import apply, issues, manifest, scan
from pipeline.fit import fit
from pipeline.utils.errors import UsageError


@pytest.fixture
def folder(tmp_path):
    """40 good pictures of two classes in data/."""
    for number in range(40):
        save(tmp_path / f"data/{'ab'[number % 2]}/{number:02}.png", noise(number))
    return tmp_path / "data"


def test_files_that_cannot_be_read_are_listed(folder, workplace, capsys):
    (folder / "a/gone.png").symlink_to(folder / "nothing")
    (folder / "b/circle.jpg").symlink_to("circle.jpg")
    entries = {e[0]: e[1:3] for e in found_in(folder)}
    assert entries == dict.fromkeys(["a/gone.png", "b/circle.jpg"], ("undecodable", "drop"))
    words = ("digits", "--source.name", "folder", "--source.path", folder)
    code, shown = run(*words, capsys=capsys)
    assert code == 0 and "undecodable         2  drop    a/gone.png (" in shown
    note = (
        f"{folder}: 2 files cannot be read, such as a/gone.png: No such file or directory; --clea"
    )
    assert note in shown
    settings = config(folder).changed(train=SHORT, model={"name": "tiny", "options": {}})
    with pytest.raises(UsageError, match=r"a/gone.png cannot be decoded: .*--clean.enabled finds"):
        fit(settings)
    source = registry.load("sources", "folder")(path=folder)
    task = registry.load("tasks", "image_classification")({"class_names": ["a", "b"]} | SHAPE)
    dropped = apply.clean(source, config(folder, enabled=True)).dropped
    parts, _ = batching.load(source, task, settings, dropped, {})
    assert sum(map(len, parts.values())) == 40


def test_a_run_with_damaged_files_completes_and_names_them(folder, workplace):
    whole = save(folder / "a/good.jpg", noise(99)).read_bytes()
    paths = damaged(folder / "b", whole, 14)
    changes = {
        "source": {"name": "folder", "path": folder},
        "data": {"augment": {}, "image_size": (8, 8)},
        "model": {"name": "tiny"},
        "train": SHORT,
        "export": {"enabled": False},
        "log": {"tensorboard": False},
        "run_directory": "run",
    }
    with pytest.raises(UsageError, match=r"b/.* cannot be decoded: .*--clean\.enabled finds"):
        fit("digits", **changes)
    first = fit("digits", clean={"enabled": True}, **changes)
    entries = manifest.read(Path("run/manifest.jsonl"))
    assert {e["file"] for e in entries} == {f"b/{path.name}" for path in paths}
    assert sum(len(split) for split in first.splits.values()) == 41
    decisions = json.loads(Path("run/decisions.json").read_text())
    left_out = next(d for d in decisions if d["name"] == "left out")
    assert left_out["value"] == "12 undecodable, 2 bomb"
    assert Path("run/gallery.html").read_text().count("<article>") == 14
    # A resumed run keeps what it began with, whatever the folder holds by now.
    Path("run/manifest.jsonl").write_text(
        "".join(json.dumps({**entry, "reason": "mine"}) + "\n" for entry in entries)
    )
    again = apply.clean(None, first.config)
    assert set(again.dropped.values()) == {"mine"} and again.found is None


def test_near_copies_that_are_added_move_no_example(folder, tmp_path):
    """The copies are left out of training, or their originals are; what is held out stays."""
    settings = config(folder, enabled=True).changed(data={"image_size": (24, 20)})

    def splits():
        loaded = dataset.load(settings)
        places = {
            loaded.source.location(int(id)): name
            for name, split in loaded.splits.items()
            for id in split.column("id")
        }
        return places, {d.name: d.value for d in loaded.decisions}

    before, decisions = splits()
    assert "excluded" not in decisions
    for number in range(0, 40, 4):
        Image.fromarray(noise(number)).save(
            folder / f"a/{number:02}.jpg", quality=98, subsampling=0
        )
    after, decisions = splits()
    originals = {place for place in after if not place.endswith("jpg")}
    assert all(after[place] == before[place] for place in originals)
    gone = before.keys() - originals
    assert {before[place] for place in gone} <= {"train", "validation"}
    for copy in after.keys() - originals:
        original = copy.replace("jpg", "png")
        assert after.get(original, after[copy]) == after[copy]
    counts = [int(part.split()[0]) for part in decisions["excluded"].split(", ")]
    assert sum(counts) == 50 - len(after) > 0


def notes(settings):
    """What is said of copies when the data are loaded, and the splits."""
    found = dataset.load(settings)
    said = [str(decision) for decision in found.decisions if "exact copies" in decision.value]
    return said, found.splits


@pytest.mark.parametrize("cache", ["memory", "disk", "none"])
def test_copies_across_splits_are_noted(folder, workplace, cache):
    for number in range(20):
        shutil.copy(folder / f"a/{2 * number:02}.png", folder / f"a/copy {number}.png")
    settings = config(folder).changed(data={"cache": cache, "cache_directory": workplace / "c"})
    said, splits = notes(settings)
    if cache == "none":  # nothing is decoded before training
        assert said == []
        return
    before, wanted = set(), []
    for name, split in splits.items():
        images = [image.tobytes() for image in split.column("image")]
        count = sum(image in before for image in images)
        wanted += [f"{count} in {name}"] * (count > 0)
        before |= set(images)
    assert len(wanted) == 2, "nothing was planted"
    (note,) = said
    assert note.startswith(f"exact copies of images in another split: {', '.join(wanted)} (such")
    one, other = re.search(r"such as (.*) and (.*); --clean.enabled leaves", note).groups()
    assert one != other and (folder / one).read_bytes() == (folder / other).read_bytes()
    if cache == "disk":
        assert notes(settings)[0] == said, "of a cache that is found, too"
    for dealt_with in ({"enabled": True, "near": False}, {"allow_leakage": True}):
        assert notes(settings.changed(clean=dealt_with))[0] == []


def test_copies_across_the_splits_of_a_source_are_noted(tmp_path):
    root = split_folders(tmp_path / "data")
    save(root / "train/a/tested.png", noise(18))
    (note,) = notes(config(root))[0]
    assert note == (
        "exact copies of images in another split: 1 in test (such as test/a/18.png and "
        "train/a/tested.png; --clean.enabled --clean.drop-leakage leaves them out)"
    )
    cleaned, splits = notes(config(root, enabled=True, drop_leakage=True, near=False))
    assert cleaned == [] and len(splits["train"]) == 12, "the remedy does what it says"


def test_leakage_stops_a_run_until_it_is_decided(tmp_path, workplace):
    root = split_folders(tmp_path / "data")
    save(root / "train/a/tested.png", noise(18))
    source = registry.load("sources", "folder")(path=root)
    id = next(i for i in scan.scan(source).id if source.location(int(i)) == "train/a/tested.png")
    told = r"leakage: train's train/a/tested.png is also test's .*--clean.drop-leakage leaves"
    with pytest.raises(UsageError, match=told):
        fit(config(root, enabled=True))
    assert not Path("runs").exists() and not Path("saved_models").exists()
    manifest.write(tmp_path / "m", issues.find(source, scan.scan(source)))
    obeyed = config(root, manifest=tmp_path / "m", drop_leakage=True)
    assert apply.clean(source, obeyed).dropped == {int(id): "leakage"}
    assert apply.clean(source, config(root, enabled=True, allow_leakage=True)).dropped == {}


def test_an_empty_split_names_cleaning(folder):
    source = registry.load("sources", "folder")(path=folder)
    task = registry.load("tasks", "image_classification")({"class_names": ["a", "b"]} | SHAPE)
    one = {int(id): 0 for id in source.columns("train")["id"]}
    told = r"'train' is empty; .*excluded \d+ examples, .* as near duplicates .--clean.no-near"
    with pytest.raises(UsageError, match=told):
        batching.load(source, task, config(folder), {}, one)


def run(*words, capsys):
    code = clean.main([str(word) for word in words])
    return code, capsys.readouterr().out


def test_the_command_writes_a_manifest_that_fit_obeys(folder, workplace, capsys):
    (folder / "a/page.jpg").write_bytes(HTML)
    save(folder / "b/again.png", noise(1))
    before = sorted(folder.rglob("*"))
    words = ("digits", "--source.name", "folder", "--source.path", folder)
    code, shown = run(*words, capsys=capsys)
    assert code == 0
    lines = shown.splitlines()
    assert lines[0].startswith(f"cleaning   {folder}: 42 examples in")
    assert lines[1].split() == ["reason", "examples", "action", "such", "as"]
    assert lines[2].startswith("undecodable         1  drop    a/page.jpg (the file is no JPEG")
    assert lines[3] == "duplicate           1  drop    b/again.png = b/01.png"
    assert lines[4] == "manifest   cleaned/digits-1/manifest.jsonl"
    assert lines[5] == "gallery    cleaned/digits-1/gallery.html"
    assert lines[6] == (
        f"next       python -m pipeline.fit digits --source.name folder --source.path {folder} "
        "--clean.manifest cleaned/digits-1/manifest.jsonl"
    )
    written = manifest.read(Path("cleaned/digits-1/manifest.jsonl"))
    assert sorted(folder.rglob("*")) == before
    obeyed = config(folder, manifest=Path("cleaned/digits-1/manifest.jsonl"))
    assert set(apply.clean(registry.load("sources", "folder")(path=folder), obeyed).dropped) == {
        entry["id"] for entry in written
    }


def test_the_command_ends_with_1_where_a_run_would_stop(tmp_path, workplace, capsys):
    root = split_folders(tmp_path / "data")
    save(root / "train/a/tested.png", noise(18))
    words = ("digits", "--source.name", "folder", "--source.path", root)
    code, shown = run(*words, capsys=capsys)
    assert code == 1 and shown.splitlines()[-1].startswith("STOPS      leakage: train's train/a/te")
    (entry,) = manifest.read(Path("cleaned/digits-1/manifest.jsonl"))
    assert entry["action"] == "stop" and entry["of_split"] == "test"
    with pytest.raises(UsageError, match="leakage"):
        apply.clean(
            registry.load("sources", "folder")(path=root),
            config(root, manifest=Path("cleaned/digits-1/manifest.jsonl")),
        )
    with pytest.raises(UsageError, match="digits-1 holds a manifest, which may have been edited"):
        clean.main([*map(str, words), "--clean.directory", "cleaned/digits-1"])


def test_nothing_is_written_among_the_data(folder):
    with pytest.raises(UsageError, match="is inside .*, the data"):
        words = ["--source.name", "folder", "--source.path", str(folder)]
        clean.main([*words, "--clean.directory", str(folder / "new")])
    assert not (folder / "new").exists()


def test_neither_help_nor_an_error_imports_tensorflow_or_numpy():
    program = """
import sys
from pipeline.clean import main
from pipeline.utils.errors import UsageError
for words in (["--help"], ["digits", "--help"], ["nothing"], ["--clean.directory", "/dev/null"]):
    try:
        main(words)
    except (SystemExit, UsageError):
        pass
heavy = {"tensorflow", "keras", "numpy", "scipy", "sklearn", "matplotlib", "PIL"}
sys.exit(", ".join(heavy & set(sys.modules)) or 0)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-500:]
    assert "python -m pipeline.clean RECIPE --help" in result.stdout
