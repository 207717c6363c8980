"""The folder source: what counts as an example, and what is refused by name."""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from small import loaded

from pipeline.config import config, registry
from pipeline.utils.errors import UsageError


def take(path, **options):
    return registry.load("sources", "folder")(path=path, **options)


def write(path, shade=0, size=(6, 4), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (shade,) * 3 if mode == "RGB" else shade).save(path)


@pytest.fixture
def root(tmp_path):
    """Classes `ant` and `bee wasp` in train, one of them in val, odd names, other files."""
    root = tmp_path / "insects"
    for number, name in enumerate(["a b.jpg", "é.PNG", "c.GIF", "deep/er/d.bmp", "e.WebP"]):
        write(root / "train/ant" / name, 10 * number)
        write(root / "train/bee wasp" / name, 100 + 10 * number)
    write(root / "val/ant/x.png", 200)
    (root / "train/ant/.DS_Store").write_bytes(b"hidden")
    (root / "train/ant/Thumbs.db").write_bytes(b"other")
    (root / "train/notes.txt").write_bytes(b"other")
    return root


def read(source, split="train"):
    return list(source.examples(split).as_numpy_iterator())


def test_files_become_examples_in_sorted_order(root):
    source = take(root)
    assert source.info.splits == {"train": 10, "validation": 1}
    assert source.info.class_names == ("ant", "bee wasp")
    examples = read(source)
    places = [source.location(int(example["id"])) for example in examples]
    assert places == sorted(places) and places[0] == "train/ant/a b.jpg"
    assert "train/bee wasp/deep/er/d.bmp" in places and "train/ant/é.PNG" in places
    for example, place in zip(examples, places, strict=True):
        assert example["image"] == (root / place).read_bytes()
        assert example["label"] == ("bee wasp" in place)
    assert {k: v.dtype for k, v in source.info.fields.items()} == {
        "id": tf.int64,
        "label": tf.int64,
        "image": tf.string,
    }
    (note,) = source.info.notes
    assert "2 files that are no images" in note and "Thumbs.db, notes.txt" in note


def test_a_position_is_read_as_the_sequence_has_it(root):
    source = take(root, group="^(.)")
    read_one = tf.data.Dataset.range(10).map(source.reader("train")).as_numpy_iterator()
    for one, other in zip(read_one, read(source), strict=True):
        assert one == other and set(one) == {"id", "image", "label", "group"}


def test_columns_open_no_file(root):
    source = take(root, group="^(.)")
    wanted = read(source)
    for file in root.rglob("*.*"):
        file.unlink()
    columns = source.columns("train")
    assert set(columns) == {"id", "label", "group"}
    for name, column in columns.items():
        assert column.tolist() == [example[name] for example in wanted]


def test_a_folder_is_decoded_and_divided(root):
    source = take(root)
    metadata = registry.load("tasks", "image_classification")(source.info).metadata
    assert metadata == {"class_names": ["ant", "bee wasp"], "image_shape": [4, 6, 3]}
    task = registry.load("tasks", "image_classification")(metadata)
    splits, _ = loaded(source, task, test=0.0)
    shades = splits["train"].column("image").reshape(10, -1).astype(int)
    wanted = [int(np.median(row)) for row in shades]
    assert sorted(round(shade, -1) for shade in wanted) == [*range(0, 50, 10), *range(100, 150, 10)]


def test_the_size_comes_from_the_headers_where_all_agree(tmp_path):
    def metadata(info, **options):
        return registry.load("tasks", "image_classification")(info, **options).metadata

    for name in ("a/1.png", "b/2.png"):
        write(tmp_path / name, mode="L")
    assert metadata(take(tmp_path).info)["image_shape"] == [4, 6, 1]
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("L", (4, 6)).save(tmp_path / "a/turned.jpg", exif=exif)
    assert metadata(take(tmp_path).info)["image_shape"] == [4, 6, 1]
    (tmp_path / "a/damaged.jpg").write_bytes(b"no image")
    assert metadata(take(tmp_path).info)["image_shape"] == [4, 6, 1]
    write(tmp_path / "b/3.png", size=(7, 4))
    with pytest.raises(UsageError, match="give --data.image-size HEIGHT WIDTH"):
        metadata(take(tmp_path).info)
    assert metadata(take(tmp_path).info, image_size=(8, 9))["image_shape"] == [8, 9, 3]


def test_other_files_move_no_id_and_another_fingerprint(root):
    source = take(root)
    before, ids = source.fingerprint(), {e["image"]: e["id"] for e in read(source)}
    assert take(root).fingerprint() == before
    write(root / "train/ant/0.png", 77)
    more = take(root)
    assert {e["image"]: e["id"] for e in read(more)}.items() > ids.items()
    assert more.fingerprint() != before
    (root / "train/ant/0.png").unlink()
    assert take(root).fingerprint() == before
    os.utime(root / "train/ant/a b.jpg", (1, 1))
    assert take(root).fingerprint() != before


def test_a_class_that_sorts_first_moves_no_example(tmp_path):
    for number in range(60):
        write(tmp_path / "bc"[number % 2] / f"{number}.png", number)

    def where():
        source = take(tmp_path)
        task = registry.load("tasks", "image_classification")(source.info)
        splits, _ = loaded(source, task)
        return {source.location(int(i)): n for n, s in splits.items() for i in s.column("id")}

    before = where()
    for number in range(10):
        write(tmp_path / "a" / f"{number}.png", number)
    after = where()
    assert len(after) == 70 and after.items() > before.items()


def test_groups_join_files(root):
    groups = {}
    for example in read(take(root, group=r"(\w+)\.\w+$")):
        groups.setdefault(example["group"], set()).add(example["label"])
    assert list(groups.values()) == [{0, 1}] * 5
    with pytest.raises(UsageError, match=r"'\^train' matches nothing in val/ant/x.png \(1 of "):
        take(root, group="^train")
    with pytest.raises(UsageError, match=r"nothing in train/ant/.* \((\d+) of \1 such files\)"):
        take(root, group="zzz")
    with pytest.raises(UsageError, match="is no regular expression"):
        take(root, group="(")


def test_links_in_a_circle_end(root):
    (root / "train/ant/circle").symlink_to(root / "train/ant")
    (root / "train/ant/deep/up").symlink_to(root / "train")
    source = take(root)
    places = [source.location(int(example["id"])) for example in read(source)]
    assert not any("circle" in place for place in places)
    assert not any("deep/up" in place for place in places)  # it would bring bees
    assert "train/ant/circle (a link back into the data)" in source.info.notes[0]


def test_links_that_leave_a_split_empty_are_named(root):
    (root / "val/ant/x.png").unlink()
    (root / "val/ant").rmdir()
    (root / "val/ant").symlink_to("../train/ant")
    source = take(root)
    task = registry.load("tasks", "image_classification")(source.info, image_size=(2, 2))
    message = (
        r"'validation' is empty; .*are left out, such as .*val/ant \(a link back into the data"
    )
    with pytest.raises(UsageError, match=message):
        loaded(source, task)


@pytest.mark.parametrize("way", ["relative", "a link", "a link to train"])
def test_links_back_into_the_data_are_left_out_however_the_root_is_given(root, monkeypatch, way):
    (root / "train/ant/bees").symlink_to("../bee wasp")
    (root / "train/ant/all").symlink_to("..")
    monkeypatch.chdir(root.parent)
    if way == "a link to train":
        (root / "train").rename("elsewhere")
        (root / "train").symlink_to("../elsewhere")
    elif way == "a link":
        Path("linked").symlink_to("insects")
    source = take(Path("linked") if way == "a link" else Path("insects"))
    assert np.bincount(source.columns("train")["label"]).tolist() == [5, 5]
    assert "train/ant/all (a link back into the data)" in source.info.notes[0]


def test_hashes_that_meet_are_found(root, monkeypatch):
    module = __import__("pipeline.data.sources.folder", fromlist=["_hash"])
    monkeypatch.setattr(module, "_hash", lambda text: 5)
    with pytest.raises(UsageError, match="a b.jpg and train/ant/c.GIF have the same id"):
        take(root)


def remove(root, name):
    for file in sorted((root / name).rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()


def rename_all(root):
    (root / "train").rename(root / "Training")
    (root / "val").rename(root / "dev")


CASES = {
    "an empty class": (lambda r: (r / "train/moth").mkdir(), "train/moth holds no images"),
    "a class unknown to train": (lambda r: (r / "val/ants").mkdir(), "val/ants.*mean 'ant'"),
    "no classes": (lambda r: remove(r, "train"), "train has no sub-folders"),
    "a third folder": (lambda r: (r / "extra").mkdir(), "extra is no split beside train"),
    "two validations": (lambda r: (r / "valid").mkdir(), "valid and val, which are one split"),
    "splits by other names": (rename_all, "has Training, dev, which would be classes; splits are"),
    "no train": (lambda r: (r / "train").rename(r / "test"), "has test, val but no folder train"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_by_name(root, case):
    spoil, message = CASES[case]
    spoil(root)
    with pytest.raises(UsageError, match=message):
        take(root)


def test_groups_hold_across_splits_too(root):
    """Of one patient in train and val; the hash of groups divides train alone."""
    source = take(root, group=r"(ant|bee)")
    metadata = registry.load("tasks", "image_classification")(
        source.info, image_size=(2, 2)
    ).metadata
    task = registry.load("tasks", "image_classification")(metadata)
    with pytest.raises(UsageError, match=r"groups are in train and in validation: train/.* and v"):
        loaded(source, task)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(UsageError, match="x is no folder"):
        take(tmp_path / "x")
    with pytest.raises(UsageError, match="folder needs --source.path"):
        config.Source(name="folder")
    with pytest.raises(UsageError, match="scikit_learn has no option 'group'"):
        config.Source(name="scikit_learn", options={"dataset": "digits", "group": "x"})
