"""Issues of examples: each kind of damage, duplicate and leak is found, with its
reason.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import unclean
from PIL import Image
from unclean import entries_of, find, noise, save, source_of

from pipeline.config import registry
from pipeline.data.array_source import ArraySource
from pipeline.data.cleaning import issues, manifest, scan
from pipeline.utils.errors import UsageError


@pytest.fixture
def folder(tmp_path):
    return unclean.pictures(tmp_path / "data")


def test_damaged_files_are_named_with_a_plain_reason(folder, capfd):
    assert find(source_of(folder)) == []
    good = save(folder / "a/good.jpg", noise(99)).read_bytes()
    paths = unclean.damaged(folder / "b", good, 14)
    entries = {entry["file"]: entry for entry in entries_of(source_of(folder))}
    assert set(entries) == {f"b/{path.name}" for path in paths}
    for file, entry in entries.items():
        assert (entry["reason"], entry["action"]) == ("undecodable", "drop"), file
    assert "JPEG, PNG, GIF, BMP or WebP image" in entries["b/1-page.jpg"]["detail"]
    assert entries["b/6-bomb.png"]["detail"].endswith(
        "of 89478485: height 60000 width 60000"
    )
    printed = capfd.readouterr().err
    assert not any(word in printed for word in ("JPEG", "rendezvous", "assertion")), (
        printed
    )


def test_unfit_pictures_are_found_by_their_pixels(folder):
    grey = np.full((24, 20, 3), 7, np.uint8)
    Image.fromarray(grey).save(folder / "a/blank.jpg")
    save(folder / "a/dot.png", noise(50, (5, 5)))
    assert find(source_of(folder)) == [
        ("a/blank.jpg", "blank", "drop", None),
        ("a/dot.png", "tiny", "drop", None),
    ]


def test_labels_out_of_range_and_small_pictures_among_small_ones():
    labels = np.arange(20) % 3
    labels[5], labels[6] = -1, 3
    images = np.stack([noise(n, (6, 6)) for n in range(20)])  # not tiny: all are small
    source = ArraySource(
        {"image": images, "label": labels}, class_names=("a", "b", "c")
    )
    entries = entries_of(source)
    assert [(e["id"], e["reason"], e["action"]) for e in entries] == [
        (5, "label out of range", "drop"),
        (6, "label out of range", "drop"),
    ]
    assert entries[1]["detail"] == "label 3; the classes are 0 to 2"


def test_the_same_pixels_again_and_under_two_labels(folder):
    save(folder / "a/again.bmp", noise(0))  # another format, the same pixels
    save(folder / "b/other.png", noise(2))  # a/02.png under another label
    save(folder / "a/other.bmp", noise(2))
    assert find(source_of(folder)) == [
        ("a/02.png", "two labels", "drop", "b/other.png"),
        ("a/again.bmp", "duplicate", "drop", "a/00.png"),
        ("a/other.bmp", "two labels", "drop", "b/other.png"),
        ("b/other.png", "two labels", "drop", "a/02.png"),
    ]


def test_leakage_is_about_the_copy_that_is_not_held_out(tmp_path):
    root = unclean.split_pictures(tmp_path / "data")
    save(root / "train/a/tested.png", noise(18))
    save(root / "train/b/valid.png", noise(12))  # under another label, too
    save(root / "val/a/tested.png", noise(20)[:, ::-1])  # mirrored
    expected = [
        ("train/a/tested.png", "leakage", "stop", "test/a/18.png"),
        ("train/b/valid.png", "leakage", "stop", "val/a/12.png"),
        ("val/a/tested.png", "near leakage", "stop", "test/a/20.png"),
    ]
    assert find(source_of(root)) == expected
    assert find(source_of(root), near=False) == expected[:2]
    assert entries_of(source_of(root))[1]["detail"] == "with a different label"


def test_near_duplicates_are_kept_and_grouped(folder):
    save(folder / "a/mirror.png", noise(0)[:, ::-1])
    Image.fromarray(noise(0)).save(folder / "b/encoded.jpg", quality=95)
    source = source_of(folder)
    entries = entries_of(source)
    assert sorted((e["reason"], e["action"]) for e in entries) == [
        ("near duplicate", "keep"),
        ("near duplicate, two labels", "keep"),
    ]
    groups = manifest.groups(entries)
    assert set(groups.values()) == {min(groups)}
    names = {source.location(id) for id in groups}
    assert names == {"a/00.png", "a/mirror.png", "b/encoded.jpg"}


def test_a_test_set_of_re_encoded_training_images_stops_the_run(tmp_path):
    """Every image is in a near pair, which alone does not make them all alike."""
    for number in range(30):
        file = f"{'ab'[number % 2]}/{number:02}"
        image = noise(number, (64, 64))
        save(tmp_path / f"train/{file}.png", image)
        save(tmp_path / f"test/{file}.jpg", image)
    findings = find(source_of(tmp_path))
    assert [(reason, action) for _, reason, action, _ in findings] == [
        ("near leakage", "stop")
    ] * 30
    assert all(Path(name).stem == Path(copy).stem for name, *_, copy in findings)


@pytest.mark.parametrize(("vary", "alike"), [(0.5, 60), (12, 0)])
def test_pictures_that_are_all_alike_stop_nothing_and_are_noted(vary, alike):
    generator = np.random.default_rng(0)
    many = noise(0, (32, 32)) + vary * generator.normal(size=(60, 32, 32, 1))
    images = np.clip(many, 0, 255).astype(np.uint8)
    source = ArraySource(
        {"image": images, "label": np.arange(60) % 2}, class_names=("a", "b")
    )
    split = np.repeat(np.arange(2, dtype=np.int8), [40, 20])
    scanned = dataclasses.replace(
        scan.scan(source), splits=("train", "test"), split=split
    )
    entries = issues.find(source, scanned)
    assert [(e["reason"], e["action"]) for e in entries] == [
        ("all alike", "keep")
    ] * alike
    assert manifest.groups(entries) == {} == manifest.excluded_ids(entries)
    notes = issues.notes(scanned, entries)
    assert len(notes) == bool(alike)
    assert all(
        note.startswith("60 of 60 images are as close to others as") for note in notes
    )


def test_only_images_with_labels_can_be_cleaned():
    source = registry.load("sources", "scikit_learn")(dataset="diabetes")
    with pytest.raises(
        UsageError, match="only images .* this source has id .int64., features"
    ):
        scan.scan(source)
