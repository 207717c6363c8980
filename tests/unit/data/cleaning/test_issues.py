"""Issues of examples: each kind of damage, duplicate and leak is found, with its
reason.
"""

import dataclasses
from pathlib import Path

import damaged_images
import numpy as np
import pytest
from damaged_images import (
    entries_of,
    find,
    noise,
    save,
    scan_images,
    short,
    source_of,
)
from PIL import Image

from pipeline.config import registry
from pipeline.data.array_source import ArraySource
from pipeline.data.cleaning import issues, manifest, scan


@pytest.fixture
def folder(tmp_path):
    return damaged_images.pictures(tmp_path / "data")


def test_damaged_files_are_named_with_a_plain_reason(folder, capfd):
    good = save(folder / "a/good.jpg", noise(99)).read_bytes()
    paths = damaged_images.damaged(folder / "b", good, 14)
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
    root = damaged_images.split_pictures(tmp_path / "data")
    save(root / "train/a/tested.png", noise(18))
    save(root / "train/b/valid.png", noise(12))  # under another label, too
    save(root / "val/a/tested.png", noise(20)[:, ::-1])  # mirrored
    expected = [
        ("train/a/tested.png", "leakage", "stop", "test/a/18.png"),
        ("train/b/valid.png", "leakage", "stop", "val/a/12.png"),
        ("val/a/tested.png", "near leakage", "stop", "test/a/20.png"),
    ]
    source = source_of(root)
    scanned = scan_images(source)
    entries = issues.find(source, scanned)
    assert short(entries) == expected
    assert entries[1]["detail"] == "with a different label"
    assert short(issues.find(source, scanned, near=False)) == expected[:2]


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
        scan_images(source), splits=("train", "test"), split=split
    )
    entries = issues.find(source, scanned)
    assert [(e["reason"], e["action"]) for e in entries] == [
        ("all alike", "keep")
    ] * alike
    assert manifest.groups(entries) == {} == manifest.excluded_ids(entries)
    notes = issues.notes(scanned, entries)
    assert len(notes) == bool(alike)
    assert all(
        note.startswith("60 of 60 examples are as close to others as") for note in notes
    )


def _table(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def _short(entries):
    """(id, reason, action, id of the other example), with ids in their split."""
    rows = []
    for entry in entries:
        of = entry["of"] & 0xFFFF if "of" in entry else None
        rows.append((entry["id"], entry["reason"], entry["action"], of))
    return rows


def test_rows_of_numbers_that_are_the_same_in_a_split_and_across_splits():
    features, labels = _table(20), np.arange(20) % 3
    features[5] = features[2]  # under the same label
    features[9] = features[3]  # under another label
    features[7, 1], features[8, 0] = np.nan, np.inf
    labels[[9, 11]] = 1, 9
    train = {"features": features, "label": labels, "group": np.arange(20)}
    test = {"features": _table(4, 1), "label": labels[:4], "group": np.arange(4)}
    test["features"][1] = features[6]
    source = ArraySource(
        train,
        {"test": test},
        class_names=("a", "b", "c"),
        feature_names=("u", "v", "w"),
    )
    entries = entries_of(source)
    assert _short(entries) == [
        (3, "two labels", "drop", 9),
        (5, "duplicate", "drop", 2),
        (6, "leakage", "stop", 1),
        (7, "not finite", "drop", None),
        (8, "not finite", "drop", None),
        (9, "two labels", "drop", 3),
        (11, "label out of range", "drop", None),
    ]
    details = {entry["id"]: entry.get("detail") for entry in entries}
    assert details[7] == "feature 'v' is not finite in float32"
    assert details[6] == "with a different label"
    assert [entries[0][key] for key in ("label", "of_label")] == ["a", "b"]


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint16])
def test_arrays_of_any_dtype_and_numbers_to_predict(dtype):
    series = (np.arange(16 * 4 * 5 * 3).reshape(16, 4, 5, 3) * 7).astype(dtype)
    series[4] = series[1]
    series[6] = series[2]
    target = np.linspace(0, 1, 16).astype(np.float32)
    target[4] = target[1]
    target[9] = np.nan
    source = ArraySource({"features": series, "target": target})
    entries = entries_of(source)
    assert _short(entries) == [
        (2, "two targets", "drop", 6),
        (4, "duplicate", "drop", 1),
        (6, "two targets", "drop", 2),
        (9, "not finite", "drop", None),
    ]
    assert entries[0]["label"] == "0.133333" and entries[0]["of_label"] == "0.4"
    # A field of another name, which the config names.
    renamed = ArraySource({"x": series, "y": target})
    found = issues.find(renamed, scan.scan(renamed, target="y"))
    assert _short(found) == _short(entries)


def test_several_inputs_are_the_same_only_together():
    images = np.stack([noise(n, (6, 6)) for n in range(12)])
    table = _table(12)
    images[3], table[3] = images[1], table[1]
    images[5] = images[2]
    labels = np.eye(2, dtype=np.uint8)[np.arange(12) % 2]
    labels[8, 0] = 2
    columns = {"left/image": images, "right/features": table, "labels": labels}
    source = ArraySource(columns, class_names=("a", "b"))
    entries = entries_of(source)
    assert _short(entries) == [
        (3, "duplicate", "drop", 1),
        (8, "label out of range", "drop", None),
    ]
    assert entries[0]["label"] == "b"


def test_masks_of_images_are_decoded_and_compared():
    images = np.stack([noise(n, (16, 16)) for n in range(24)])
    masks = (images[..., 0] > 99).astype(np.uint8)
    images[3], masks[3] = images[1], masks[1]
    images[5], masks[5] = images[2], 1 - masks[2]
    masks[7, 0, 0] = 9
    source = ArraySource({"image": images, "mask": masks}, class_names=("a", "b"))
    task = registry.load("tasks", "supervised")(source.info)
    assert scan.needs_decoding(source)
    entries = issues.find(source, scan.scan(source, task.decode))
    assert _short(entries) == [
        (2, "two targets", "drop", 5),
        (3, "duplicate", "drop", 1),
        (5, "two targets", "drop", 2),
        (7, "undecodable", "drop", None),
    ]
    assert "not from 0 to 1" in entries[-1]["detail"] and "label" not in entries[0]


def test_damaged_files_of_numbers_are_found_by_decoding(tmp_path):
    for number in range(12):
        path = tmp_path / f"{'ab'[number % 2]}/{number:02}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, _table(4, number))
    (tmp_path / "a/02.npy").write_bytes(b"no array")
    (tmp_path / "b/03.npy").write_bytes((tmp_path / "b/01.npy").read_bytes())
    options = {"path": tmp_path, "suffixes": (".npy",), "field": "features"}
    source = registry.load("sources", "folder")(**options)
    parts = {"input": "features", "input_options": {"shape": (4, 3)}}
    task = registry.load("tasks", "supervised")(source.info, parts)
    entries = issues.find(source, scan.scan(source, task.decode))
    assert [(e["file"], e["reason"], e.get("of_file")) for e in entries] == [
        ("a/02.npy", "undecodable", None),
        ("b/03.npy", "duplicate", "b/01.npy"),
    ]
    assert "not an .npy file" in entries[0]["detail"]
