"""Sources: every example with a stable id; damaged or foreign data refused by name."""

import shutil
import socket

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from conftest import images_and_labels
from small import loaded

from pipeline import shelf
from pipeline.errors import UsageError


def take(name, **options):
    return shelf.take("sources", name)(**options)


def read(source, split="train"):
    rows = list(source.examples(split).as_numpy_iterator())
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
        ({"labels": changed(GOOD_LABELS, _5=-1)}, "label -1 of example 5 is no class"),
        ({"labels": changed(GOOD_LABELS, _9=1.5)}, "label 1.5 of example 9 is no class"),
        ({"labels": changed(GOOD_LABELS, _4=255)}, "no example has label 3"),
        ({"labels": np.eye(3)[GOOD_LABELS]}, "labels must be whole numbers of shape"),
        ({"labels": np.array(["x"] * 60)}, "labels must be whole numbers"),
        ({"class_names": ["a", "a", "b"]}, "class_names must be different strings, none empty"),
        ({"class_names": ["a", "", "b"]}, "class_names must be different strings"),
        ({"class_names": [b"a", b"b", b"c"]}, "class_names must be different strings"),
        ({"images": np.zeros((60, 0, 4, 1), np.uint8)}, "images must have pixels"),
        ({"class_names": ["a", "b"]}, "label 2 of example 2 is out of range: .* has 2 names"),
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
            }
        )

    image = tfds.features.Image(shape=(6, 5, 3))
    tfds.dataset_builders.store_as_tfds_dataset(
        name="shapes",
        version="1.0.0",
        data_dir=path,
        features=tfds.features.FeaturesDict(
            {"image": image, "label": tfds.features.ClassLabel(names=["n", "e", "s", "w"])}
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


def test_a_damaged_shard_is_named(data_dir, tmp_path):
    shutil.copytree(data_dir, tmp_path / "copy")
    (shard,) = (tmp_path / "copy/shapes").rglob("*test.tfrecord*")
    shard.write_bytes(shard.read_bytes()[:100])
    source = take("tfds", dataset="shapes", path=tmp_path / "copy")
    facts = shelf.take("tasks", "image_classification", "facts")(source.info)
    task = shelf.take("tasks", "image_classification")(facts)
    with pytest.raises(UsageError, match="split 'test' cannot be read after 0 examples"):
        loaded(source, task)


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
