"""A folder of photos in one line, and what is said of folders that have faults."""

import re
import shlex
import shutil
from pathlib import Path

import damaged_images
import numpy as np
import pytest
import tensorflow as tf
from damaged_images import config, noise, save, source_of
from image_files import GOOD, encoded, write_good
from PIL import Image
from processes import run_module
from random_images import images_and_labels
from toy_problem import loaded

from pipeline import clean
from pipeline import fit as command
from pipeline.config import command_line, registry
from pipeline.data import dataset, example_store
from pipeline.data.cleaning import apply, manifest
from pipeline.fit import fit
from pipeline.training import preflight
from pipeline.utils.errors import UsageError, reason


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """JPEGs of several sizes and modes of bright and dark pictures; two are filed
    twice.
    """
    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for number in range(80):
        name, level = (("daisy", 150), ("Rose", 0))[number % 2]
        side = (32, 40, 48)[number % 3]
        image = Image.fromarray(
            generator.integers(level, level + 100, (side, 40, 3), np.uint8)
        )
        path = root / f"flowers/{name}/{number}.{'png' if number % 5 == 0 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.convert("L" if number % 7 == 0 else "RGB").save(path)
    (root / "flowers/roses").mkdir()
    for copy in ("Rose/1", "Rose/3"):
        (root / f"flowers/{copy.replace('Rose', 'roses')}.jpg").write_bytes(
            (root / f"flowers/{copy}.jpg").read_bytes()
        )
    return root


SMALL = (
    "--epochs 2 --export.no-enabled --image-size 16 --model.name tiny --batch-size 16"
)


def test_a_folder_in_one_line_is_trained_and_resumed(photos, workplace):
    process = run_module("pipeline.fit", photos, *SMALL.split(), cwd=workplace)
    assert process.returncode == 0, process.stderr
    said, after = process.stdout.split(f"run        photos in runs/{photos.name}-1\n")
    assert said.startswith(f"data       {photos}/flowers, the only data in {photos}\n")
    assert re.search(r"note +similar classes: 'Rose' and 'roses' \(", after)
    assert "duplicates: 2 examples, 2 of them in two classes, such as " in after
    words = [str(photos), *SMALL.split(), "--run-directory", f"runs/{photos.name}-1"]
    run = command.run(command_line.request(words))
    assert len(run.history["loss"]) == 2


# Cleaning end to end: the command, and runs that apply its findings.


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
    assert lines[4].startswith("labels     not checked, except of copies; once a run")
    assert "pipeline clean --label-noise RUN_DIRECTORY" in lines[4]
    assert lines[5] == "manifest   cleaned/digits-1/manifest.jsonl"
    assert lines[6] == "gallery    cleaned/digits-1/gallery.html"
    assert (
        lines[7] == "next       pipeline fit digits --source.name folder"
        f" --source.path {shlex.quote(str(folder))}"
        " --clean.manifest cleaned/digits-1/manifest.jsonl"
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
    assert "labels  " not in said, "numbers are not searched for wrong ones"
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
    return lines, {**found.splits, "test": found.whole_test}


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


# Files that people have: read, or refused in one line that names the file.


def bomb():
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (60_000).to_bytes(4, "big") * 2
    return header + encoded()[24:]


BAD = {
    "an HTML page.jpg": (
        b"<html><body>404</body></html>",
        "the file is not a JPEG, PNG, GIF, BMP",
    ),
    "empty.png": (b"", "the file is not a JPEG"),
    "cut é.jpg": (encoded("JPEG")[:300], "Invalid JPEG data"),
    "cut.png": (encoded()[:900], "Invalid PNG data"),
    "bomb.png": (bomb(), "the image has no pixels, or more than the limit of 89478485"),
    "cut.gif": (encoded("GIF")[:900], "the GIF ends within its first frame"),
}


@pytest.fixture
def root(tmp_path):
    return write_good(tmp_path / "insects")


def records(path, contents):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, content in enumerate(contents):
            features = {
                "image": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[content])
                ),
                "label": tf.train.Feature(
                    int64_list=tf.train.Int64List(value=[number % 2])
                ),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    return path


def task_of(source, size=(8, 8)):
    metadata = registry.load("tasks", "image_classification")(
        source.info, image_size=size
    ).metadata
    return registry.load("tasks", "image_classification")(metadata)


def refusals(source):
    """The message for each example that cannot be decoded."""
    task = task_of(source)
    for example in source.examples("train"):
        try:
            task.decode(example)
        except tf.errors.OpError as error:
            yield str(example_store.decoding_error(source, int(example["id"]), error))


def test_odd_images_are_read(root):
    source = registry.load("sources", "folder")(path=root)
    assert source.info.splits == {"train": len(GOOD)} and not list(refusals(source))


def test_every_bad_file_or_record_is_named_in_one_line(root, tmp_path):
    contents = [*GOOD.values(), *(content for content, _ in BAD.values())]
    path = records(tmp_path / "a.tfrecord", contents)
    found = list(refusals(registry.load("sources", "tfrecord")(path=path)))
    messages = [message for _, message in BAD.values()]
    places = [
        f"record {number} of a.tfrecord" for number in range(len(GOOD), len(contents))
    ]
    for name, (content, _) in BAD.items():
        (root / "bee" / name).write_bytes(content)
    found += refusals(registry.load("sources", "folder")(path=root))
    messages += [message for _, (_, message) in sorted(BAD.items())]
    places += [f"bee/{name}" for name in sorted(BAD)]
    for place, message, line in zip(places, messages, found, strict=True):
        assert line.startswith(f"{place} cannot be decoded: {message}"), line
        assert "\n" not in line and "{{" not in line and "tf.Tensor" not in line


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("{{function_node __wrapped__X}} it broke [Op:X] name: ", "it broke"),
        (
            (
                "assertion failed: [damaged record in] [/a b/c] [number] [4]\n\t"
                " [[{{node A}}]]"
            ),
            None,
        ),
        (
            (
                "Graph execution error:\n\nDetected at node X defined at (most recent"
                ' call last):\n  File "x.py", line 4, in f\n\nInvalid PNG data, size'
                " 6\n\t [[{{node X}}]] [Op:__f_1]"
            ),
            "Invalid PNG data, size 6",
        ),
        (
            "Key: label.  Can't parse serialized Example.\n\t [[{{node B}}]]",
            "Key: label.  Can't",
        ),
    ],
)
def test_the_reason_of_an_error_is_one_plain_line(message, expected):
    error = tf.errors.InvalidArgumentError(None, None, message)
    assert reason(error).startswith(expected or "damaged record in /a b/c number 4")
    assert "\n" not in reason(error)


def test_a_run_directory_among_the_data_is_refused(root, monkeypatch):
    monkeypatch.chdir(root)
    settings = command_line.recipe("digits").changed(
        source={"name": "folder", "path": "."}
    )
    with pytest.raises(UsageError, match="--run-directory: runs"):
        preflight.check(settings)


def test_a_manifest_of_other_data_is_refused(root, tmp_path):
    source = registry.load("sources", "folder")(path=root)
    path = tmp_path / "manifest.jsonl"
    path.write_text('{"id": 7, "reason": "blank", "action": "drop"}')
    settings = command_line.recipe("digits").changed(clean={"manifest": path})
    with pytest.raises(UsageError, match="none of the 1 examples"):
        apply.clean(source, settings)
    first = int(source.columns("train")["id"][0])
    entries = [
        {"id": 7, "reason": "blank", "action": "drop"},
        {"id": first, "file": "elsewhere/cat.png", "reason": "blank", "action": "drop"},
        {
            "id": first,
            "file": source.location(first),
            "reason": "tiny",
            "action": "drop",
        },
    ]
    manifest.write(path, entries)
    found = apply.clean(source, settings)
    assert (
        found.excluded == {first: "tiny"}
        and found.decisions[0].value == "1 tiny excluded"
    )


def test_a_label_out_of_range_is_named_and_can_be_excluded(tmp_path):
    images, labels = images_and_labels(30, (8, 8, 1))
    labels[[11, 12]] = -1, 7
    path = tmp_path / "mine.npz"
    np.savez(path, images=images, labels=labels, class_names=["a", "b", "c"])
    source = registry.load("sources", "arrays")(path=path)
    task = task_of(source)
    with pytest.raises(
        UsageError,
        match="example 11 of mine.npz .* 0 to 2; got -1",
    ):
        loaded(source, task)
    settings = command_line.recipe("digits").changed(clean={"enabled": True})
    found = apply.clean(source, settings)
    assert found.excluded == dict.fromkeys((11, 12), "label out of range")
    splits, _ = loaded(source, task, found.excluded)
    assert sum(map(len, splits.values())) == 28
