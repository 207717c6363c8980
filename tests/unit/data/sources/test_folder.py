"""The folder source: which files are examples, and which directories are rejected."""

import builtins
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from toy_problem import loaded, read

from pipeline.config import registry
from pipeline.data import file_source
from pipeline.data.sources.folder import folder
from pipeline.utils import image_formats
from pipeline.utils.errors import UsageError


def write(path, shade=0, size=(6, 4), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (shade,) * 3 if mode == "RGB" else shade).save(
        path, **options
    )


def task_of(source, **options):
    return registry.load("tasks", "image_classification")(source.info, **options)


@pytest.fixture
def root(tmp_path):
    """Classes `ant` and `bee wasp` in train, one of them in val, odd names, other
    files.
    """
    root = tmp_path / "insects"
    for number, name in enumerate(
        ["a b.jpg", "é.PNG", "c.GIF", "deep/er/d.bmp", "e.WebP"]
    ):
        write(root / "train/ant" / name, 10 * number)
        write(root / "train/bee wasp" / name, 100 + 10 * number)
    write(root / "val/ant/x.png", 200)
    (root / "train/ant/.DS_Store").write_bytes(b"hidden")
    for name in (
        "train/ant/.hidden",
        "__MACOSX",
        "train/__MACOSX",
        "train/ant/__MACOSX",
    ):
        write(root / name / "hidden.png")
    (root / "train/ant/Thumbs.db").write_bytes(b"other")
    (root / "train/notes.txt").write_bytes(b"other")
    return root


def test_the_lists_of_speech_commands_are_splits(tmp_path):
    for name in ("yes/a", "yes/b", "no/a", "no/b", "no/c", "_background_noise_/d"):
        write(tmp_path / f"{name}.png")
    (tmp_path / "testing_list.txt").write_text("yes/b.png\nno/a.png\n")
    (tmp_path / "validation_list.txt").write_text("no/c.png\r\n")
    source = folder(path=tmp_path)
    assert source.info.class_names == ("no", "yes")
    assert source.info.splits == {"train": 2, "validation": 1, "test": 2}
    assert [
        source.location(int(e["id"]))
        for e in source.examples("test").as_numpy_iterator()
    ] == ["no/a.png", "yes/b.png"]
    assert source.columns("test")["label"].tolist() == [0, 1]
    assert source.info.notes == (
        f"{tmp_path}: left out _background_noise_, which is not a word",
        f"{tmp_path}: 1 file in validation_list.txt, the validation split",
        f"{tmp_path}: 2 files in testing_list.txt, the test split",
    )


def test_files_are_examples_in_sorted_order(root):
    for name, target in (
        ("up", "../.."),
        ("bees", "../bee wasp"),
        ("circle", "../ant"),
    ):
        (root / "train/ant" / name).symlink_to(target)
    source = folder(path=root)
    assert source.info.splits == {"train": 10, "validation": 1}
    assert source.info.class_names == ("ant", "bee wasp")
    examples = read(source)
    places = [source.location(int(example["id"])) for example in examples]
    assert places == sorted(places) and places[0] == "train/ant/a b.jpg"
    assert "train/bee wasp/deep/er/d.bmp" in places and "train/ant/é.PNG" in places
    for example, name in zip(examples, places, strict=True):
        assert example["image"] == (root / name).read_bytes()
        assert example["label"] == ("bee wasp" in name)
    (note,) = source.info.notes
    assert "ignored 5 files, such as " in note and "Thumbs.db, bees, circle" in note
    (root.parent / "link").symlink_to("insects")
    assert folder(path=root.parent / "link").info.splits == source.info.splits


def test_the_size_comes_from_the_headers_if_all_agree(tmp_path):
    for name in ("a/1.png", "a/2.gif", "b/3.bmp", "b/4.webp"):
        write(tmp_path / name, mode="L")
    assert task_of(folder(path=tmp_path)).metadata["image_shape"] == [4, 6, 3]
    for name in ("a/2.gif", "b/4.webp"):
        (tmp_path / name).unlink()
    exif = Image.Exif()
    exif[0x0112] = 6
    write(tmp_path / "a/turned.jpg", mode="L", size=(4, 6), exif=exif)
    (tmp_path / "a/damaged.jpg").write_bytes(b"no image")
    assert task_of(folder(path=tmp_path)).metadata["image_shape"] == [4, 6, 1]
    write(tmp_path / "b/3.png", size=(7, 4))
    with pytest.raises(UsageError, match="--data.image-size HEIGHT WIDTH"):
        task_of(folder(path=tmp_path))
    task = task_of(folder(path=tmp_path), image_size=(8, 9))
    assert task.metadata["image_shape"] == [8, 9, 3]


def test_other_files_change_the_fingerprint_and_no_id(root):
    source = folder(path=root)
    before, ids = source.fingerprint(), {e["image"]: e["id"] for e in read(source)}
    write(root / "train/ant/0.png", 77)
    extended = folder(path=root)
    assert {e["image"]: e["id"] for e in read(extended)}.items() > ids.items()
    assert extended.fingerprint() != before


def test_groups_join_files(root):
    groups = {}
    for example in read(folder(path=root, group=r"(\w+)\.\w+$")):
        groups.setdefault(example["group"], set()).add(example["label"])
    assert list(groups.values()) == [{0, 1}] * 5
    names = folder(path=root, group=r"(\w+)\.\w+$").group_names()
    assert set(names.values()) == set(groups) and all(n.isalnum() for n in names)
    source = folder(path=root, group=r"(ant|bee)")
    with pytest.raises(UsageError, match="train and validation"):
        loaded(source, task_of(source, image_size=(2, 2)))


REJECTED = {
    "an empty class": (
        lambda r: (r / "train/moth").mkdir(),
        "train/moth contains no image files; remove",
    ),
    "a class unknown to train": (
        lambda r: (r / "val/ants").mkdir(),
        "val/ants.*mean 'ant'",
    ),
    "a third directory": (
        lambda r: (r / "extra").mkdir(),
        "the directories extra, train, val;",
    ),
    "splits by other names": (
        lambda r: ((r / "train").rename(r / "Training"), (r / "val").rename(r / "dev")),
        "Training, dev; splits must be named train",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_wrong_directories_are_rejected(root, case):
    spoil, message = REJECTED[case]
    spoil(root)
    with pytest.raises(UsageError, match=message):
        folder(path=root)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": "^train"}, r"'\^train' does not match val/ant/x.png"),
        ({"group": "("}, "--source.group .*valid regular expression"),
    ],
)
def test_wrong_options_are_rejected(root, options, message):
    with pytest.raises(UsageError, match=message):
        folder(path=root, **options)


def test_what_cannot_be_read_is_ignored_with_a_note(root):
    (root / "train/ant/a gone.png").symlink_to("nothing")
    os.mkfifo(root / "val/ant/a pipe.jpg")
    source = folder(path=root)
    assert "a gone.png, a pipe.jpg" in source.info.notes[0]


def test_a_folder_that_changes_while_it_is_listed_is_one_line(root, monkeypatch):
    walk = image_formats.walk

    def gone(path, **options):
        if str(path).endswith("bee wasp"):
            shutil.rmtree(path)
        return walk(path, **options)

    monkeypatch.setattr(image_formats, "walk", gone)
    with pytest.raises(UsageError, match="bee wasp cannot be read: No such file"):
        folder(path=root)


def test_only_the_sample_of_files_is_opened(tmp_path, monkeypatch):
    for number in range(12):
        write(tmp_path / f"{'ab'[number % 2]}/{number}.jpg")
    opened = []
    open_file = builtins.open

    def count(path, *arguments, **options):
        opened.append(path)
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(file_source, "_SAMPLE", 2)
    monkeypatch.setattr(builtins, "open", count)
    source = folder(path=tmp_path)
    task_of(source, image_size=(8, 9))
    assert len(opened) == 2 + 2  # for their sizes, and for 16-bit PNGs
    assert len(source.columns("train")["id"]) == 12


def test_folders_of_systems_and_tools_are_no_classes(tmp_path):
    for name in ("11", "2", "#9"):
        write(tmp_path / name / "1.png")
    ignored = (
        "@eaDir",
        "@Recycle",
        "#recycle",
        "$RECYCLE.BIN",
        "lost+found",
        "__pycache__",
    )
    ignored += (
        ".ipynb_checkpoints",
        ".Trash-1000",
        "__MACOSX",
        "System Volume Information",
    )
    for name in ignored:
        write(tmp_path / name / "1.png")
        write(tmp_path / "2" / name / "deep" / "1.png")
    write(tmp_path / "@__thumb" / "1.png")
    source = folder(path=tmp_path)
    assert source.info.class_names == ("#9", "11", "2") and not source.info.notes
    assert source.info.splits == {"train": 3}
    (tmp_path / "#9").rename(tmp_path / "09")
    assert folder(path=tmp_path).info.class_names == ("2", "09", "11")


def test_the_bits_are_those_of_all_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(file_source, "MAX_DEEP_PNGS", 4)
    for name, highest in (("dark", 255), ("light", 60_000)):
        (tmp_path / name).mkdir()
        for number in range(6):
            pixels = np.full((4, 6), highest, np.uint16)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    assert folder(path=tmp_path).info.image_bits == 16


def test_16_bit_images_are_decoded_alike_in_training_and_serving(tmp_path):
    levels = np.arange(0, 3000, 125, dtype=np.uint16).reshape(4, 6)
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(levels).save(tmp_path / name)
    source = folder(path=tmp_path)
    assert (
        source.info.image_bits == 12
        and "16-bit images: values up to 2,875" in source.info.notes[0]
    )
    task = task_of(source)
    content = (tmp_path / "a/1.png").read_bytes()
    raw = {"image": tf.constant(content), "label": tf.constant(0, tf.int64)}
    decoded = task.decode(raw)["image"]
    np.testing.assert_array_equal(decoded[..., 0], levels >> 4)
    again = registry.load("tasks", "image_classification")(task.metadata)
    served = again.decode(raw)["image"]
    np.testing.assert_array_equal(served, decoded)


@pytest.fixture
def series(tmp_path):
    """Classes `up` and `down` of arrays, with one image among them."""
    for name in ("up", "down"):
        for number in range(3):
            path = tmp_path / "series" / name / f"{number}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, np.full((5, 2), number, np.float32))
    write(tmp_path / "series/up/preview.png")
    return tmp_path / "series"


def test_the_files_are_those_of_the_input_that_reads_most(series):
    source = folder(path=series)
    assert source.info.splits == {"train": 6}
    assert source.info.fields.keys() == {"id", "label", "features"}
    for example in read(source):
        name = source.location(int(example["id"]))
        assert example["features"] == (series / name).read_bytes()
        assert example["label"] == name.startswith("up")
    (note,) = source.info.notes
    assert note == (
        f"{series}: 6 of 7 files are read, the features files; --source.field image"
        " reads 1 image file instead"
    )


def test_options_choose_the_files(series):
    with pytest.raises(UsageError, match="down .*remove it"):
        folder(path=series, field="image")
    write(series / "down/preview.PNG")
    source = folder(path=series, field="image")
    assert source.info.splits == {"train": 2} and source.info.image_shape == (4, 6, 3)
    assert "ignored 6 files, such as 0.npy, 1.npy" in source.info.notes[0]
    assert folder(path=series, suffixes=("png",)).info.splits == {"train": 2}
    own = folder(path=series, field="series", suffixes=(".npy",))
    assert own.info.fields.keys() == {"id", "label", "series"}
    with pytest.raises(UsageError, match="--source.field serie"):
        folder(path=series, field="serie")
