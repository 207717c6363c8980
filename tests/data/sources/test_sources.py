"""Sources: every example with a stable id; damaged or foreign data refused by name."""

import io
import shutil
import socket

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from conftest import images_and_labels
from PIL import Image

from pipeline.config import registry
from pipeline.data.sources import _record_files
from pipeline.utils.errors import UsageError


def take(name, **options):
    return registry.load("sources", name)(**options)


def read(source, split="train"):
    """All examples; encoded images are decoded by Pillow."""
    rows = list(source.examples(split).as_numpy_iterator())
    for row in rows:
        if isinstance(row.get("image"), bytes):
            row["image"] = np.array(Image.open(io.BytesIO(row["image"])))
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def test_arrays_gives_what_the_file_holds(npz):
    images, labels = images_and_labels()
    source = take("arrays", path=npz(class_names=["a", "b", "c"]))
    columns = read(source)
    np.testing.assert_array_equal(columns["image"], images)
    np.testing.assert_array_equal(columns["label"], labels)
    np.testing.assert_array_equal(columns["id"], np.arange(60))
    assert source.info.splits == {"train": 60} and source.info.class_names == ("a", "b", "c")


def test_arrays_takes_grey_images_without_a_channel_axis(npz):
    images, _ = images_and_labels(shape=(6, 6))
    source = take("arrays", path=npz(images=images))
    assert source.info.fields["image"].shape == (6, 6, 1)
    assert source.info.class_names == ("0", "1", "2")


GOOD_IMAGES, GOOD_LABELS = images_and_labels()


def changed(labels, **places):
    labels = labels.astype(type(next(iter(places.values()))))
    for place, value in places.items():
        labels[int(place[1:])] = value
    return labels


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"labels": GOOD_LABELS[:50]}, "60 images but 50 labels"),
        ({"images": GOOD_IMAGES[:0], "labels": GOOD_LABELS[:0]}, "holds no examples"),
        ({"images": False}, "no key 'images'; it has labels"),
        ({"labels": False}, "no key 'labels'"),
        ({"images": GOOD_IMAGES / 255}, "must be uint8 .* received float64"),
        ({"images": GOOD_IMAGES[:, 0, 0, 0]}, "must be uint8 of shape"),
        ({"images": np.zeros((60, 4, 4, 2), np.uint8)}, "1 or 3 channels"),
        ({"labels": changed(GOOD_LABELS, _7=np.nan)}, "label nan of example 7 is no class"),
        ({"labels": changed(GOOD_LABELS, _9=1.5)}, "label 1.5 of example 9 is no class"),
        ({"labels": changed(GOOD_LABELS, _4=255)}, "no example has label 3"),
        ({"labels": np.eye(3)[GOOD_LABELS]}, "labels must be whole numbers of shape"),
        ({"labels": np.array(["x"] * 60)}, "labels must be whole numbers"),
        ({"class_names": ["a", "a", "b"]}, "class_names must be different strings, none empty"),
        ({"class_names": ["a", "", "b"]}, "class_names must be different strings"),
        ({"class_names": [b"a", b"b", b"c"]}, "class_names must be different strings"),
        ({"images": np.zeros((60, 0, 4, 1), np.uint8)}, "images must have pixels"),
    ],
)
def test_arrays_refuses_by_name(npz, columns, message):
    with pytest.raises(UsageError, match=message):
        take("arrays", path=npz(**columns))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b"\x93NUMPY", b"\x80\x04K\x01."])
def test_arrays_refuses_a_file_that_is_no_npz(tmp_path, content):
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"x\.npz is no \.npz of plain arrays"):
        take("arrays", path=path)


def test_flipped_bytes_of_an_npz_are_refused_or_harmless(npz):
    path = npz()
    whole = path.read_bytes()
    for seed in range(60):
        raw = bytearray(whole)
        raw[np.random.default_rng(seed).integers(len(raw))] ^= 0x41
        path.write_bytes(raw)
        try:
            take("arrays", path=path)
        except UsageError as error:
            assert str(path) in str(error)


def test_arrays_never_unpickles(npz):
    path = npz(labels=np.array([{"a": 1}] * 60, object))
    with pytest.raises(UsageError, match="is no .npz of plain arrays"):
        take("arrays", path=path)


def test_digits_are_the_real_ones():
    from sklearn.datasets import load_digits

    columns = read(take("scikit_learn", dataset="digits"))
    assert columns["image"].shape == (1797, 8, 8, 1) and columns["image"].dtype == np.uint8
    np.testing.assert_array_equal(
        np.rint(columns["image"][..., 0] * (16 / 255)), load_digits().images
    )


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Two TFDS data sets on the disk: one of images and labels, one without labels."""
    path = tmp_path_factory.mktemp("tfds")
    generator = np.random.default_rng(3)

    def images(count, first):
        return tf.data.Dataset.from_tensor_slices(
            {
                "image": generator.integers(0, 256, (count, 6, 5, 3), np.uint8),
                "label": (np.arange(count) + first) % 4,
                "patient": np.array(["", "é"])[np.arange(count) % 2],
            }
        )

    image = tfds.features.Image(shape=(6, 5, 3))
    tfds.dataset_builders.store_as_tfds_dataset(
        name="shapes",
        version="1.0.0",
        data_dir=path,
        features=tfds.features.FeaturesDict(
            {
                "image": image,
                "label": tfds.features.ClassLabel(names=["n", "e", "s", "w"]),
                "patient": tfds.features.Text(),
            }
        ),
        split_datasets={"train": images(40, 0), "test": images(12, 1)},
    )
    tfds.dataset_builders.store_as_tfds_dataset(
        name="bare",
        version="1.0.0",
        data_dir=path,
        features=tfds.features.FeaturesDict({"image": image}),
        split_datasets={"train": images(4, 0).map(lambda x: {"image": x["image"]})},
    )
    return path


def test_tfds_reads_a_prepared_set_in_one_order(data_dir):
    source = take("tfds", dataset="shapes", path=data_dir)
    assert source.info.splits == {"train": 40, "test": 12}
    assert source.info.class_names == ("n", "e", "s", "w")
    first, second, test = read(source), read(source), read(source, "test")
    np.testing.assert_array_equal(first["image"], second["image"])
    np.testing.assert_array_equal(first["id"], np.arange(40))
    np.testing.assert_array_equal(first["label"], second["label"])
    stored = np.random.default_rng(3).integers(0, 256, (40, 6, 5, 3), np.uint8)
    for image, label in zip(first["image"], first["label"], strict=True):  # TFDS shuffles once
        assert np.flatnonzero((stored == image).all(axis=(1, 2, 3))) % 4 == label
    assert not set(first["id"]) & set(test["id"])


def test_tfds_says_at_once_what_to_do_when_data_are_missing(tmp_path, monkeypatch):
    def no_network(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    with pytest.raises(UsageError, match="mnist is not prepared in .* tfds build mnist"):
        take("tfds", dataset="mnist", path=tmp_path)
    with pytest.raises(UsageError) as caught:  # one with a config, whose folder lies one deeper
        take("tfds", dataset="cifar10_corrupted/fog_3", path=tmp_path)
    assert f"--data_dir {tmp_path} " in str(caught.value)
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(
        UsageError, match=r"--data_dir (?!.*fog).*tfds|--data_dir .*tensorflow_datasets "
    ):
        take("tfds", dataset="cifar10_corrupted/fog_3")
    assert not list(tmp_path.iterdir())


def test_a_position_is_read_as_the_sequence_has_it(data_dir):
    source = take("tfds", dataset="shapes", path=data_dir, splits={"train": "train[10:30]"})
    for split in source.info.splits:
        positions = tf.data.Dataset.range(source.info.splits[split])
        found = positions.map(source.reader(split)).as_numpy_iterator()
        assert list(found) == list(source.examples(split).as_numpy_iterator())


def test_parts_of_a_split_keep_their_ids(data_dir):
    whole = read(take("tfds", dataset="shapes", path=data_dir))
    splits = {"train": "train[:20]", "validation": "train[20:30]", "test": "train[75%:]"}
    source = take("tfds", dataset="shapes", path=data_dir, splits=splits)
    assert source.info.splits == {"train": 20, "validation": 10, "test": 10}
    for split, first in {"train": 0, "validation": 20, "test": 30}.items():
        part = read(source, split)
        for name, column in part.items():
            np.testing.assert_array_equal(column, whole[name][first : first + len(column)])
    assert source.location(27) == "record 27 of shapes's train"
    splits = {"train": "test[:3]+train[:5]", "test": "test[3:]"}
    both = take("tfds", dataset="shapes", path=data_dir, splits=splits)
    assert both.columns("train")["id"].tolist() == [*range(2 << 40, (2 << 40) + 3), *range(5)]
    assert both.location((2 << 40) + 3) == "record 3 of shapes's test"


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": "train[:20]", "test": "train[15:]"}, r"train\[15:\]\) share 5 examples"),
        ({"validation": "train[:10%]"}, r"train \(train\) and validation .* share 4 examples"),
        ({"train": "trian"}, "'trian' is refused by TFDS: Unknown split 'trian'"),
        ({"train": "train[:x]"}, r"'train\[:x\]' is refused by TFDS: Error parsing"),
        ({"test": "test[:0]"}, r"'test\[:0\]' of shapes holds no examples"),
    ],
)
def test_splits_are_refused_by_name(data_dir, splits, message):
    with pytest.raises(UsageError, match=message):
        take("tfds", dataset="shapes", path=data_dir, splits=splits)


def test_other_files_of_tfds_have_another_fingerprint(data_dir, tmp_path):
    shutil.copytree(data_dir, tmp_path / "copy")
    first = take("tfds", dataset="shapes", path=tmp_path / "copy")
    part = take("tfds", dataset="shapes", path=tmp_path / "copy", splits={"train": "train[:9]"})
    again = take("tfds", dataset="shapes", path=tmp_path / "copy")
    before = first.fingerprint()
    assert before == again.fingerprint() != part.fingerprint()
    spoil_images(tmp_path / "copy/shapes")
    assert take("tfds", dataset="shapes", path=tmp_path / "copy").fingerprint() != before


def test_groups_of_tfds_are_a_feature(data_dir):
    source = take("tfds", dataset="shapes", path=data_dir, group="patient")
    columns = source.columns("train")
    assert columns["group"].dtype == np.int64 and len(set(columns["group"])) == 2
    np.testing.assert_array_equal(columns["group"], read(source)["group"])
    by_label = take("tfds", dataset="shapes", path=data_dir, group="label").columns("train")
    np.testing.assert_array_equal(by_label["group"], by_label["label"])
    with pytest.raises(UsageError, match="no feature 'patent'; did you mean 'patient'"):
        take("tfds", dataset="shapes", path=data_dir, group="patent")
    with pytest.raises(UsageError, match="'image' is not one whole number or text"):
        take("tfds", dataset="shapes", path=data_dir, group="image")


@pytest.fixture
def shard(data_dir, tmp_path):
    """The file of the test split in a copy, to be damaged."""
    shutil.copytree(data_dir, tmp_path / "copy")
    (shard,) = (tmp_path / "copy/shapes").rglob("*test.tfrecord*")
    return shard


def test_a_truncated_shard_is_named(shard):
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(UsageError, match=r"shapes-test.*of-00001 is cut off inside record 0"):
        take("tfds", dataset="shapes", path=shard.parents[2])


def test_a_shard_cut_at_a_record_border_is_named(shard):
    raw = shard.read_bytes()
    shard.write_bytes(raw[: _record_files.index([shard]).offsets[7]])
    with pytest.raises(UsageError, match=r"shapes-test.* holds 7 records, .*json says 12"):
        take("tfds", dataset="shapes", path=shard.parents[2])


def test_a_missing_shard_is_named(shard):
    shard.unlink()
    with pytest.raises(UsageError, match=r"shapes-test.*of-00001 cannot be read: No such file"):
        take("tfds", dataset="shapes", path=shard.parents[2])


def test_a_damaged_record_is_named(shard):
    raw = bytearray(shard.read_bytes())
    raw[_record_files.index([shard]).offsets[5] + 20] ^= 1
    shard.write_bytes(raw)
    source = take("tfds", dataset="shapes", path=shard.parents[2])
    with pytest.raises(UsageError, match=r"shapes-test.*of-00001: record 5 is damaged"):
        source.columns("test")


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("fashion_mnis", "no builder 'fashion_mnis'; did you mean 'fashion_mnist'"),
        ("zzzzzzzzzzzz", "no builder 'zzzzzzzzzzzz'; the names are at"),
        ("", "--source.dataset"),
        ("../shapes", "--source.dataset"),
        ("bare", "bare is no image classification"),
        ("imdb_reviews", "imdb_reviews is no image classification"),
        ("huggingface:mnist", "--source.dataset 'huggingface:mnist' is refused"),
    ],
)
def test_tfds_refuses_what_it_cannot_use(data_dir, dataset, message):
    with pytest.raises(UsageError, match=message):
        take("tfds", dataset=dataset, path=data_dir)


def spoil_images(folder):
    """Replaces the image of every record by a text that no one can decode."""
    for shard in folder.rglob("*.tfrecord*"):
        records = [record.numpy() for record in tf.data.TFRecordDataset(str(shard))]
        with tf.io.TFRecordWriter(str(shard)) as writer:
            for record in records:
                example = tf.train.Example.FromString(record)
                example.features.feature["image"].bytes_list.value[:] = [b"<html>"]
                writer.write(example.SerializeToString())


def test_columns_are_what_the_examples_say(data_dir, npz):
    for source in (
        take("arrays", path=npz()),
        take("scikit_learn", dataset="diabetes"),
        take("tfds", dataset="shapes", path=data_dir),
    ):
        for split in source.info.splits:
            wanted, columns = read(source, split), source.columns(split)
            assert set(columns) == set(wanted) - {"image"}
            for name, column in columns.items():
                np.testing.assert_array_equal(column, wanted[name])
                assert column.dtype == wanted[name].dtype


def test_columns_of_tfds_ask_for_no_image(data_dir, tmp_path):
    shutil.copytree(data_dir, tmp_path / "copy")
    wanted = take("tfds", dataset="shapes", path=data_dir).columns("test")
    spoil_images(tmp_path / "copy/shapes")
    columns = take("tfds", dataset="shapes", path=tmp_path / "copy").columns("test")
    np.testing.assert_array_equal(columns["label"], wanted["label"])
