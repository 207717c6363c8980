"""What a cleaning finds: each damage, repetition and leak, by its reason."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from unclean import HTML, damaged, find, found_in, noise, png_header, save, split_folders

from pipeline.config import registry
from pipeline.data.cleaning import issues, manifest, scan
from pipeline.data.sources._array_source import ArraySource
from pipeline.utils.errors import UsageError


@pytest.fixture
def folder(tmp_path):
    """40 good pictures of two classes in data/."""
    for number in range(40):
        save(tmp_path / f"data/{'ab'[number % 2]}/{number:02}.png", noise(number))
    return tmp_path / "data"


def test_a_clean_folder_has_no_findings(folder):
    assert found_in(folder) == []


def test_every_damaged_file_is_named_with_its_reason(folder, capfd):
    whole = save(folder / "a/good.jpg", noise(99)).read_bytes()
    paths = damaged(folder / "b", whole, 21)
    found = found_in(folder)
    named = {file: reason for file, reason, action, _ in found if action == "drop"}
    assert len(found) == 21 and set(named) == {f"b/{path.name}" for path in paths}
    for file, reason in named.items():
        assert reason == ("bomb" if "bomb" in file else "undecodable"), file
    said = capfd.readouterr().err
    assert not any(word in said for word in ("JPEG", "rendezvous", "assertion")), said


def test_why_a_file_is_damaged_is_told_without_tensorflows_words(folder):
    (folder / "b/page.jpg").write_bytes(HTML)
    (folder / "b/bomb.png").write_bytes(png_header(60_000, 60_000))
    source = registry.load("sources", "folder")(path=folder)
    bomb, page = issues.find(source, scan.scan(source))
    assert page["detail"] == "the file is not a JPEG, PNG, GIF, BMP or WebP image"
    assert bomb["detail"].endswith("of 89478485: height 60000 width 60000")


def test_unfit_pictures_are_found_by_their_pixels(folder):
    grey = np.full((24, 20, 3), 7, np.uint8)
    Image.fromarray(grey).save(folder / "a/blank.jpg")
    save(folder / "a/dot.png", noise(50, (5, 5)))
    save(folder / "b/banner.png", noise(51, (10, 90)))
    assert found_in(folder) == [
        ("a/blank.jpg", "blank", "drop", None),
        ("a/dot.png", "tiny", "drop", None),
        ("b/banner.png", "extreme aspect", "keep", None),
    ]


def test_small_pictures_are_not_tiny_where_all_are_small():
    images = np.stack([noise(n, (6, 6)) for n in range(20)])
    assert find(ArraySource({"image": images, "label": np.arange(20) % 2})) == []


def test_labels_out_of_range():
    labels = np.arange(20) % 3
    labels[5], labels[6] = -1, 3
    images = np.stack([noise(n) for n in range(20)])
    source = ArraySource({"image": images, "label": labels}, class_names=("a", "b", "c"))
    entries = issues.find(source, scan.scan(source))
    assert [(e["id"], e["reason"], e["action"]) for e in entries] == [
        (5, "label out of range", "drop"),
        (6, "label out of range", "drop"),
    ]
    assert entries[1]["detail"] == "label 3 of classes 0 ... 2"


def test_the_same_pixels_again_and_under_two_labels(folder):
    save(folder / "a/again.bmp", noise(0))  # another format, the same pixels
    save(folder / "b/other.png", noise(2))  # a/02.png under another label
    save(folder / "a/other.bmp", noise(2))
    assert found_in(folder) == [
        ("a/02.png", "two labels", "drop", "b/other.png"),
        ("a/again.bmp", "duplicate", "drop", "a/00.png"),
        ("a/other.bmp", "two labels", "drop", "b/other.png"),
        ("b/other.png", "two labels", "drop", "a/02.png"),
    ]


def test_pixels_of_another_shape_are_not_the_same():
    flat = np.arange(48, dtype=np.uint8)
    images = [flat.reshape(2, 8, 3), flat.reshape(4, 4, 3)]
    digests = [
        scan.scan(ArraySource({"image": image[None], "label": np.zeros(1, int)})).digest
        for image in images
    ]
    assert (digests[0] != digests[1]).any()


def test_leakage_is_about_the_copy_that_is_not_held_out(tmp_path):
    root = split_folders(tmp_path / "data")
    save(root / "train/a/tested.png", noise(18))
    save(root / "train/b/valid.png", noise(12))  # under another label, too
    save(root / "val/a/tested.png", noise(20)[:, ::-1])  # mirrored
    source = registry.load("sources", "folder")(path=root)
    entries = issues.find(source, scan.scan(source))
    assert [(e["file"], e["reason"], e["action"], e["of_file"]) for e in entries] == [
        ("train/a/tested.png", "leakage", "stop", "test/a/18.png"),
        ("train/b/valid.png", "leakage", "stop", "val/a/12.png"),
        ("val/a/tested.png", "near leakage", "stop", "test/a/20.png"),
    ]
    assert entries[1]["detail"] == "under another label"
    assert found_in(root, near=False) == [
        (e["file"], e["reason"], e["action"], e["of_file"]) for e in entries[:2]
    ]


def test_near_duplicates_are_kept_and_tied_together(folder):
    save(folder / "a/mirror.png", noise(0)[:, ::-1])
    Image.fromarray(noise(0)).save(folder / "b/encoded.jpg", quality=95)
    source = registry.load("sources", "folder")(path=folder)
    entries = issues.find(source, scan.scan(source))
    assert {e["action"] for e in entries} == {"keep"} and len(entries) == 2
    assert sorted(e["reason"] for e in entries) == [
        "near duplicate",
        "near duplicate, two labels",
    ]
    names = ("a/00.png", "a/mirror.png", "b/encoded.jpg")
    scanned = scan.scan(source)
    ids = {source.location(int(id)): int(id) for id in scanned.id}
    (group,) = set(manifest.groups(entries).values())
    assert group == min(ids[name] for name in names)
    assert set(manifest.groups(entries)) == {ids[name] for name in names}


def test_a_test_set_of_re_encoded_training_images_stops_the_run(tmp_path):
    """Every image is in a near pair, which alone does not make them all alike."""
    for number in range(30):
        file = f"{'ab'[number % 2]}/{number:02}"
        image = noise(number, (64, 64))
        save(tmp_path / f"train/{file}.png", image)
        save(tmp_path / f"test/{file}.jpg", image)
    found = found_in(tmp_path)
    assert [(reason, action) for _, reason, action, _ in found] == [("near leakage", "stop")] * 30
    assert all(Path(one).stem == Path(other).stem for one, *_, other in found)


def test_groups_hang_together_over_any_number_of_links():
    def tied(*pairs):
        return manifest.groups(
            [{"id": a, "of": b, "reason": "", "action": "keep"} for a, b in pairs]
        )

    assert tied((9, 8), (3, 4), (8, 3), (20, 21)) == {9: 3, 8: 3, 4: 3, 3: 3, 20: 20, 21: 20}
    chain = tied(*((n, n + 1) for n in range(5000)))
    assert set(chain.values()) == {0} and len(chain) == 5001


def fixed_camera(splits, vary=0.5, seed=0):
    """Pictures of one scene as a source: split -> how many."""
    generator = np.random.default_rng(seed)
    scene = noise(0, (32, 32)).astype(float)
    many = [
        np.clip(scene + vary * generator.normal(size=(32, 32, 1)), 0, 255).astype(np.uint8)
        for _ in range(sum(splits.values()))
    ]
    images, label = np.stack(many), np.arange(len(many)) % 2
    source = ArraySource({"image": images, "label": label}, class_names=("a", "b"))
    scanned = scan.scan(source)
    split = np.repeat(np.arange(len(splits), dtype=np.int8), list(splits.values()))
    return source, dataclasses.replace(scanned, splits=tuple(splits), split=split)


def test_pictures_that_are_all_alike_stop_nothing_and_are_told():
    source, scanned = fixed_camera({"train": 40, "test": 20})
    entries = issues.find(source, scanned)
    assert {(e["reason"], e["action"]) for e in entries} == {("all alike", "keep")}
    assert len(entries) == 60 and manifest.groups(entries) == {} == manifest.dropped(entries)
    (line,) = issues.notes(source, scanned, entries)
    assert line.startswith("60 of 60 pictures are as near to others as copies would be: these pict")
    assert "--source.group" in line and "--clean.no-near" in line


def test_alike_pictures_with_some_variation_have_no_findings():
    assert issues.find(*fixed_camera({"train": 40, "test": 20}, vary=12)) == []


def test_rare_and_missing_classes_are_told():
    labels = np.array([0] * 44 + [1] * 4)
    images = np.stack([noise(n) for n in range(48)])
    source = ArraySource({"image": images, "label": labels}, class_names=("many", "few", "none"))
    scanned = scan.scan(source)
    lines = issues.notes(source, scanned, issues.find(source, scanned))
    assert lines == [
        "train has no examples of none",
        "train has 44 examples of many but 4 of few; --train.class-weight can even that out",
    ]


class InOrder(ArraySource):
    """Encoded images that can only be read one after the other."""

    def __init__(self, images):
        super().__init__({"image": np.array(images, object), "label": np.arange(len(images)) % 2})
        self.info.fields["image"] = tf.TensorSpec((), tf.string)

    def examples(self, split):
        columns = {**self._columns, "image": tf.constant(list(self._columns["image"]))}
        return tf.data.Dataset.from_tensor_slices(columns)


def test_a_source_without_a_reader_is_cleaned_too():
    images = [tf.io.encode_png(noise(n)).numpy() for n in range(20)]
    images[3], images[11] = HTML, images[3][:100]
    source = InOrder(images)
    scanned = scan.scan(source)
    found = [(e["id"], e["reason"]) for e in issues.find(source, scanned)]
    assert found == [(3, "undecodable"), (11, "undecodable")]
    assert set(scan.pictures(source, scanned, np.arange(20), 16)) == set(range(20)) - {3, 11}


def test_regression_is_refused():
    source = registry.load("sources", "scikit_learn")(dataset="diabetes")
    with pytest.raises(UsageError, match="only images .* this source has id .int64., features"):
        scan.scan(source)
