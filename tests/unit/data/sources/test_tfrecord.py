"""The tfrecord source: layouts detected or given, splits by name, damage named by its
record.
"""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from toy_problem import read

from pipeline.data.sources import tfrecord as tfrecord_module
from pipeline.data.sources.tfrecord import tfrecord
from pipeline.utils.errors import UsageError


def png(shade, size=(6, 4), kind="PNG", **options):
    file = io.BytesIO()
    Image.new("L", size, shade).save(file, kind, **options)
    return file.getvalue()


def example(**values):
    message = tf.train.Example()
    for name, value in values.items():
        several = value if isinstance(value, list) else [value]
        kinds = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
        kind = kinds[type(several[0])]
        getattr(message.features.feature[name], kind).value.extend(several)
    return message.SerializeToString()


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record if isinstance(record, bytes) else example(**record))
    return path


def rows(count, first=0, **options):
    """Labels 0, 1, 2, 0, ...; the shade of an image is its number."""
    return [
        {
            "image": png(first + at),
            "label": at % 3,
            "patient": b"p%d" % (at // 2),
            **options,
        }
        for at in range(count)
    ]


@pytest.fixture
def root(tmp_path):
    """Three shards for train, one file for validation, one for test in a directory."""
    root = tmp_path / "records of é"
    for shard in range(3):
        write(root / f"train-0000{shard}-of-00003", rows(5, 10 * shard))
    write(root / "digits-val.tfrecord", rows(4, 100))
    write(root / "test/x.TFRecords", rows(3, 200))
    (root / ".hidden.tfrecord").write_bytes(b"hidden")
    (root / "notes.md").write_bytes(b"other")
    return root


def test_records_are_examples_in_the_order_of_their_files(root):
    source = tfrecord(path=root)
    assert source.info.splits == {"train": 15, "validation": 4, "test": 3}
    assert source.info.class_names == ("0", "1", "2") and source.info.image_shape == (
        4,
        6,
        1,
    )
    examples = read(source)
    shades = [Image.open(io.BytesIO(e["image"])).getpixel((0, 0)) for e in examples]
    assert shades == [10 * shard + at for shard in range(3) for at in range(5)]
    assert [e["label"] for e in examples] == [0, 1, 2, 0, 1] * 3
    assert source.location(int(examples[7]["id"])) == "record 2 of train-00001-of-00003"
    assert (
        source.location(int(read(source, "test")[1]["id"]))
        == "record 1 of test/x.TFRecords"
    )
    ids = [e["id"] for split in source.info.splits for e in read(source, split)]
    assert len(set(ids)) == 22 and min(ids) >= 0


def test_a_group_is_a_feature(root):
    source = tfrecord(path=root, group="patient")
    batches = (
        tf.data.Dataset.range(4).map(source.reader("validation")).as_numpy_iterator()
    )
    assert list(batches) == read(source, "validation")
    columns = source.columns("train")
    assert columns["group"].tolist() == [e["group"] for e in read(source)]
    assert len(set(columns["group"])) == 3
    assert source.columns("test")["group"][0] == columns["group"][0]  # the same text
    names = source.group_names()
    assert [names[f"p{n // 2}"] for n in range(5)] * 3 == columns["group"].tolist()
    assert tfrecord(path=root, group="label").group_names() == {"0": 0, "1": 1, "2": 2}


def test_labels_are_numbers_or_texts_with_names_or_without(root):
    names = ("a", "b", "c", "d")
    assert tfrecord(path=root, class_names=names).info.class_names == names
    texts = tfrecord(path=root, label="patient")
    assert texts.info.class_names == ("p0", "p1", "p2")
    assert texts.columns("train")["label"].tolist() == [0, 0, 1, 1, 2] * 3
    assert [e["label"] for e in read(texts, "validation")] == [0, 0, 1, 1]
    (root / "labels.txt").write_text("p2\np1\np0\n")
    assert tfrecord(path=root).info.class_names == ("p2", "p1", "p0")
    named = tfrecord(path=root, label="patient")
    assert named.columns("train")["label"].tolist() == [2, 2, 1, 1, 0] * 3
    assert named.fingerprint() != texts.fingerprint()
    write(root / "test/x.TFRecords", [*rows(2), {**rows(1)[0], "patient": b"q0"}])
    with pytest.raises(UsageError, match="split 'test' .*unknown class.*q0"):
        tfrecord(path=root, label="patient").columns("test")


def test_a_layout_is_detected_or_given(tmp_path):
    picture = png(9, kind="JPEG")
    record = {
        "image/encoded": picture,
        "image/class/label": 0,
        "image/class/text": b"cat",
    }
    source = tfrecord(
        path=write(
            tmp_path / "a.tfrecord", [record, {**record, "image/class/label": 1}]
        )
    )
    assert [e["label"] for e in read(source)] == [0, 1] and read(source)[0][
        "image"
    ] == picture
    assert source.info.splits == {"train": 2} and source.info.image_shape == (4, 6, 1)
    odd = {"bild": picture, "art": 0}
    path = write(tmp_path / "b.tfrecord", [odd, {**odd, "art": 1}])
    assert len(read(tfrecord(path=path, image="bild", label="art"))) == 2
    with pytest.raises(UsageError, match="image.*art, bild"):
        tfrecord(path=path)


def spoil(root, at, **values):
    row = {
        key: value
        for key, value in {**rows(1)[0], **values}.items()
        if value is not None
    }
    write(root / "train-00001-of-00003", [*rows(at), row, *rows(2)])


REJECTED = {
    "no label": (lambda r: spoil(r, 2, label=None), "record 2 has no feature 'label'"),
    "two labels": (
        lambda r: spoil(r, 1, label=[1, 2]),
        "record 1: .*'label' .*; got 2 of int64",
    ),
    "not a tf.Example": (
        lambda r: write(r / "train-00000-of-00003", [b"\xff<html>", b"x"]),
        "00000-of-00003: record 0 is not a tf.Example",
    ),
    "raw pixels": (
        lambda r: write(r / "train-00000-of-00003", [{"image": bytes(99), "label": 0}]),
        "record 0: .*'image'.*tf.io.encode_png",
    ),
    "a gap in the labels": (
        lambda r: spoil(r, 3, label=7),
        "no example has label 3; .*class-names",
    ),
    "no split in a name": (
        lambda r: write(r / "more.tfrecord", rows(1)),
        "more.tfrecord: .*train, validation or test",
    ),
    "a text for a label": (
        lambda r: spoil(r, 4, label=b"x"),
        "record 4: .*; got 1 of bytes",
    ),
    "repeated names": (
        lambda r: (r / "labels.txt").write_text("a\nb\na\n"),
        "labels.txt .*distinct, non-empty",
    ),
    "names in a directory": (
        lambda r: (r / "labels.txt").mkdir(),
        "labels.txt cannot be read as UTF-8 text",
    ),
    "an empty file": (
        lambda r: (r / "digits-val.tfrecord").write_bytes(b""),
        "digits-val.tfrecord: .*contain no examples",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_wrong_files_are_rejected(root, case):
    change, message = REJECTED[case]
    change(root)
    with pytest.raises(UsageError, match=message) as caught:
        tfrecord(path=root)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "lable"}, "record 0 has no feature 'lable'.*mean 'label'"),
        ({"group": "patent"}, "'patent' .*did you mean 'patient'"),
        ({"image": "label"}, r"'label' \(--source.image\) .*value of bytes"),
        ({"class_names": ("a", "a")}, "--source.class-names .*distinct, non-empty"),
    ],
)
def test_wrong_options_are_rejected(root, options, message):
    with pytest.raises(UsageError, match=message):
        tfrecord(path=root, **options)


def test_whole_floats_are_labels(tmp_path):
    records = [{"image": png(at), "label": float(at % 2)} for at in range(4)]
    source = tfrecord(path=write(tmp_path / "a.tfrecord", records))
    assert source.columns("train")["label"].tolist() == [0, 1, 0, 1]
    assert source.info.class_names == ("0", "1") and read(source)[1]["label"] == 1
    records[3]["label"] = 1.5
    with pytest.raises(UsageError, match="record 3: .*whole number, .*got 1.5"):
        tfrecord(path=write(tmp_path / "b.tfrecord", records))


def test_strings_of_numbers_are_classes_in_the_order_of_their_values(tmp_path):
    records = [
        {"image": png(at), "label": b"%d" % number}
        for at, number in enumerate((10, 9, 2))
    ]
    source = tfrecord(path=write(tmp_path / "a.tfrecord", records))
    assert source.info.class_names == ("2", "9", "10")
    assert source.columns("train")["label"].tolist() == [2, 1, 0]


def test_the_bits_of_16_bit_images_are_measured(tmp_path):
    levels = np.full((4, 6), 1000, np.uint16)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    records = [{"image": file.getvalue(), "label": at % 2} for at in range(4)]
    info = tfrecord(path=write(tmp_path / "a.tfrecord", records)).info
    assert info.image_bits == 10 and "values up to 1,000, 10 bits" in info.notes[0]


def test_sizes_are_those_of_a_sample_until_all_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord_module, "_SAMPLE", 2)
    records = rows(6)
    records[3]["image"] = png(3, size=(7, 4))
    write(tmp_path / "train.tfrecord", records)
    info = tfrecord(path=tmp_path).info
    assert info.image_shape == (4, 6, 1)
    assert info.exact_image_shape() == (None, None, None)
