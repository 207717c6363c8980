"""The tfrecord source: layouts found or declared, splits by name, damage named by its record."""

import io
import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.config import config, registry
from pipeline.data import shards
from pipeline.data.sources import _record_files
from pipeline.utils.errors import UsageError


def take(path, **options):
    return registry.load("sources", "tfrecord")(path=path, **options)


def png(shade, size=(6, 4), mode="L", kind="PNG", **more):
    file = io.BytesIO()
    Image.new(mode, size, shade if mode == "L" else (shade,) * 3).save(file, kind, **more)
    return file.getvalue()


def feature(value):
    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def example(**values):
    features = {name: feature(value) for name, value in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record if isinstance(record, bytes) else example(**record))
    return path


def rows(count, first=0, **more):
    """Labels 0, 1, 2, 0, ...; the shade of an image is its number."""
    return [
        {"image": png(first + at), "label": at % 3, "patient": b"p%d" % (at // 2), **more}
        for at in range(count)
    ]


@pytest.fixture
def root(tmp_path):
    """Three shards for train, one file for validation, one for test in a folder."""
    root = tmp_path / "records of é"
    for shard in range(3):
        write(root / f"train-0000{shard}-of-00003", rows(5, 10 * shard))
    write(root / "digits-val.tfrecord", rows(4, 100))
    write(root / "test/x.TFRecords", rows(3, 200))
    (root / ".hidden.tfrecord").write_bytes(b"hidden")
    (root / "notes.md").write_bytes(b"other")
    return root


def read(source, split="train"):
    return list(source.examples(split).as_numpy_iterator())


def shades(examples):
    return [Image.open(io.BytesIO(e["image"])).getpixel((0, 0)) for e in examples]


def test_records_become_examples_in_the_order_of_their_files(root):
    source = take(root)
    assert source.info.splits == {"train": 15, "validation": 4, "test": 3}
    assert source.info.class_names == ("0", "1", "2") and source.info.image_shape == (4, 6, 1)
    examples = read(source)
    assert shades(examples) == [10 * shard + at for shard in range(3) for at in range(5)]
    assert [e["label"] for e in examples] == [0, 1, 2, 0, 1] * 3
    assert source.location(int(examples[7]["id"])) == "record 2 of train-00001-of-00003"
    assert source.location(int(read(source, "test")[1]["id"])) == "record 1 of test/x.TFRecords"
    ids = [e["id"] for split in source.info.splits for e in read(source, split)]
    assert len(set(ids)) == 22 and min(ids) >= 0
    note, bare = source.info.notes
    assert "1 other files are passed by, such as notes.md" in note
    assert bare.startswith(
        f"{root} has no shards.json, so a file that was truncated between two records"
    )
    assert f"python -m pipeline.shards '{root}' > '{root}/shards.json' writes one" in bare
    (root / "shards.json").write_text(json.dumps(shards.manifest(root)))
    (root / "test/shards.json").write_text(json.dumps(shards.manifest(root / "test")))
    assert take(root).info.notes == (note,)


def test_a_file_of_names_that_is_a_folder_is_not_passed_by(root):
    (root / "labels.txt").mkdir()
    with pytest.raises(UsageError, match=r"labels.txt cannot be read as text in UTF-8"):
        take(root)


def test_a_position_is_read_as_the_sequence_has_it(root):
    source = take(root, group="patient")
    for split, count in source.info.splits.items():
        found = tf.data.Dataset.range(count).map(source.reader(split)).as_numpy_iterator()
        assert list(found) == read(source, split)
        assert set(read(source, split)[0]) == set(source.info.fields)


def test_columns_parse_no_image(root):
    source = take(root, group="patient")
    wanted, columns = read(source), source.columns("train")
    assert set(columns) == {"id", "label", "group"}
    for name, column in columns.items():
        assert column.dtype == np.int64 and column.tolist() == [e[name] for e in wanted]
    assert len(set(columns["group"])) == 3
    assert source.columns("test")["group"][0] == columns["group"][0]  # the same text


def test_other_files_move_no_id_and_another_fingerprint(root):
    source = take(root)
    before, ids = source.fingerprint(), {e["image"]: e["id"] for e in read(source)}
    assert take(root).fingerprint() == before
    write(root / "a-train.tfrecord", rows(4, 60))
    more = take(root)
    assert {e["image"]: e["id"] for e in read(more)}.items() > ids.items()
    assert more.fingerprint() != before
    assert take(root, label="patient").fingerprint() != more.fingerprint()


def test_labels_are_numbers_or_texts_with_names_or_without(root):
    assert take(root, class_names=("a", "b", "c", "d")).info.class_names == ("a", "b", "c", "d")
    texts = take(root, label="patient")
    assert texts.info.class_names == ("p0", "p1", "p2")
    assert texts.columns("train")["label"].tolist() == [0, 0, 1, 1, 2] * 3
    assert [e["label"] for e in read(texts, "validation")] == [0, 0, 1, 1]
    (root / "labels.txt").write_text("p2\np1\np0\n")
    named = take(root, label="patient")
    assert named.info.class_names == ("p2", "p1", "p0")
    assert named.columns("train")["label"].tolist() == [2, 2, 1, 1, 0] * 3
    assert take(root).info.class_names == ("p2", "p1", "p0")


def test_a_layout_is_found_or_declared(tmp_path):
    picture = png(9, mode="RGB", kind="JPEG")
    known = {"image/encoded": picture, "image/class/label": 0, "image/class/text": b"cat"}
    path = write(tmp_path / "a.tfrecord", [known, {**known, "image/class/label": 1}])
    source = take(path)
    assert [e["label"] for e in read(source)] == [0, 1] and read(source)[0]["image"] == picture
    assert source.info.splits == {"train": 2} and source.info.image_shape == (4, 6, 3)
    odd = {"bild": picture, "art": 0}
    path = write(tmp_path / "b.tfrecord", [odd, {**odd, "art": 1}])
    assert len(read(take(path, image="bild", label="art"))) == 2
    with pytest.raises(UsageError, match="which feature is the image.*there are: art, bild"):
        take(path)


def test_a_pattern_chooses_files(root):
    source = take(root / "*-0000?-of-*")
    assert source.info.splits == {"train": 15}
    assert source.columns("train")["id"].tolist() == take(root).columns("train")["id"].tolist()
    config.Source(name="tfrecord", options={"path": root / "*-0000?-of-*"})
    with pytest.raises(UsageError, match=r"zzz\* holds no TFRecord files"):
        take(root / "zzz*")


def test_the_size_comes_from_the_headers_where_all_agree(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = png(1, (4, 6), kind="JPEG", exif=exif)
    images = [png(1), png(1, kind="GIF"), png(1, kind="JPEG"), turned]
    records = [{"image": image, "label": at % 2} for at, image in enumerate(images)]
    assert take(write(tmp_path / "a.tfrecord", records)).info.image_shape[:2] == (4, 6)
    records.append({"image": png(1, (6, 5)), "label": 0})
    assert take(write(tmp_path / "b.tfrecord", records)).info.image_shape == (None,) * 3


def spoiled(root, at, **values):
    write(root / "train-00001-of-00003", [*rows(at), {**rows(1)[0], **values}, *rows(2)])


def without(root, name):
    row = rows(1)[0]
    del row[name]
    write(root / "train-00001-of-00003", [*rows(2), row])


def damage(root):
    path = root / "train-00002-of-00003"
    raw = bytearray(path.read_bytes())
    raw[_record_files.index([path]).offsets[3] + 30] ^= 1
    path.write_bytes(raw)


def cut(root, record, extra=0):
    path = root / "train-00002-of-00003"
    raw = path.read_bytes()
    path.write_bytes(raw[: _record_files.index([path]).offsets[record] + extra])


def cut_at_a_border(root):
    (root / "shards.json").write_text(json.dumps(shards.manifest(root)))
    cut(root, 3)


CASES = {
    "a missing shard": (
        lambda r: (r / "train-00001-of-00003").unlink(),
        "the shard train-00001-of-00003 is missing",
    ),
    "a damaged record": (damage, "train-00002-of-00003: record 3 is damaged"),
    "a shard cut in a record": (
        lambda r: cut(r, 3, 9),
        "train-00002-of-00003 is cut off inside record 3",
    ),
    "a shard cut at a border": (cut_at_a_border, "has 3 examples; shards.json lists 5"),
    "no label": (lambda r: without(r, "label"), "00001-of-00003: record 2 has no feature 'label'"),
    "two labels": (
        lambda r: spoiled(r, 1, label=[1, 2]),
        "record 1: the feature 'label' .* one value of int64, received 2 of int64",
    ),
    "a text for a label": (lambda r: spoiled(r, 4, label=b"x"), "record 4: .*received 1 of bytes"),
    "no tf.Example": (
        lambda r: write(r / "train-00000-of-00003", [b"\xff<html>", b"x"]),
        "train-00000-of-00003: record 0 is no tf.Example",
    ),
    "raw pixels": (
        lambda r: write(r / "train-00000-of-00003", [{"image": bytes(99), "label": 0}]),
        r"record 0: the feature 'image' .* is no JPEG.*tf.io.encode_png",
    ),
    "a label left out": (
        lambda r: spoiled(r, 3, label=7),
        "no example has label 3; .* .--source.class-names",
    ),
    "no split in a name": (
        lambda r: write(r / "more.tfrecord", rows(1)),
        "more.tfrecord: its name must say train, validation or test",
    ),
    "two splits in a name": (
        lambda r: write(r / "train-test.tfrecord", rows(1)),
        "train-test.tfrecord names several splits: train, test",
    ),
    "an empty file": (
        lambda r: (r / "digits-val.tfrecord").write_bytes(b""),
        "digits-val.tfrecord: the files for validation hold no examples",
    ),
    "another file": (
        lambda r: (r / "digits-val.tfrecord").write_bytes(b"<html>" * 99),
        "digits-val.tfrecord is no TFRecord file",
    ),
    "a link to nothing": (
        lambda r: (r / "z-train.tfrecord").symlink_to(r / "nothing"),
        "z-train.tfrecord cannot be read: No such file",
    ),
    "names that repeat": (
        lambda r: (r / "labels.txt").write_text("a\nb\na\n"),
        "the lines of .*labels.txt must be different strings, none empty",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_by_name(root, case):
    spoil, message = CASES[case]
    spoil(root)
    with pytest.raises(UsageError, match=message) as caught:
        take(root)
    assert "\n" not in str(caught.value)


def test_refused_where_it_is_first_read(root):
    write(root / "test/x.TFRecords", [*rows(2), {**rows(1)[0], "patient": b"q0", "label": 3}])
    with pytest.raises(UsageError, match=r"record 2: there is no class 'q0' in train; .*'p0'"):
        take(root, label="patient").columns("test")
    assert take(root).columns("test")["label"].tolist()[-1] == 3  # for the task to refuse


def test_features_are_refused_by_name(root):
    with pytest.raises(UsageError, match=r"record 0 has no feature 'lable'.*mean 'label'"):
        take(root, label="lable")
    with pytest.raises(UsageError, match=r"'patent' \(--source.group\); did you mean 'patient'"):
        take(root, group="patent")
    with pytest.raises(UsageError, match=r"'label' \(--source.image\) must be one value of bytes"):
        take(root, image="label")
    with pytest.raises(UsageError, match="--source.class-names must be different strings"):
        take(root, class_names=("a", "a"))
    with pytest.raises(UsageError, match="holds no TFRecord files"):
        take(root.parent)
