"""TensorFlow Datasets: prepared sets in one order, parts of splits, damaged files."""

import io
import shutil
import socket

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from pipeline.data import audio_decoding
from pipeline.data.records import index_files
from pipeline.data.sources.tfds import tfds as open_tfds
from pipeline.utils.errors import UsageError


def read(source, split="train"):
    """All examples by column; images are decoded by Pillow."""
    rows = list(source.examples(split).as_numpy_iterator())
    for row in rows:
        row["image"] = np.array(Image.open(io.BytesIO(row["image"])))
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Two sets on disk: `shapes` with images, labels and texts, and `bare` without
    labels.
    """
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

    def store(name, features, **splits):
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name,
            version="1.0.0",
            data_dir=path,
            features=tfds.features.FeaturesDict(features),
            split_datasets=splits,
        )

    image, label = (
        tfds.features.Image(shape=(6, 5, 3)),
        tfds.features.ClassLabel(names=[*"nesw"]),
    )
    features = {"image": image, "label": label, "patient": tfds.features.Text()}
    store("shapes", features, train=images(40, 0), test=images(12, 1))
    store(
        "bare",
        {"image": image},
        train=images(4, 0).map(lambda x: {"image": x["image"]}),
    )
    return path


@pytest.fixture
def copy(data_dir, tmp_path):
    """A copy of the sets, to be changed."""
    return shutil.copytree(data_dir, tmp_path / "copy")


def shapes(path, **options):
    return open_tfds(dataset="shapes", path=path, **options)


def test_a_prepared_set_is_read_in_one_order(data_dir):
    source = shapes(data_dir)
    assert source.info.splits == {"train": 40, "test": 12}
    assert source.info.class_names == ("n", "e", "s", "w")
    assert source.info.image_shape == (6, 5, 3)
    train, test = read(source), read(source, "test")
    np.testing.assert_array_equal(train["id"], np.arange(40))
    stored = np.random.default_rng(3).integers(0, 256, (40, 6, 5, 3), np.uint8)
    for image, label in zip(
        train["image"], train["label"], strict=True
    ):  # TFDS shuffles once
        assert np.flatnonzero((stored == image).all(axis=(1, 2, 3))) % 4 == label
    assert not set(train["id"]) & set(test["id"])


def test_parts_of_a_split_keep_their_ids(data_dir):
    whole = read(shapes(data_dir))
    splits = {
        "train": "train[:20]",
        "validation": "train[20:30]",
        "test": "train[75%:]",
    }
    source = shapes(data_dir, splits=splits)
    assert source.info.splits == {"train": 20, "validation": 10, "test": 10}
    for split, first in {"train": 0, "validation": 20, "test": 30}.items():
        part = read(source, split)
        for name, column in part.items():
            np.testing.assert_array_equal(
                column, whole[name][first : first + len(column)]
            )
        positions = tf.data.Dataset.range(source.info.splits[split]).map(
            source.reader(split)
        )
        assert [e["id"] for e in positions.as_numpy_iterator()] == part["id"].tolist()
    assert source.location(27) == "record 27 of shapes's train"
    assert source.fingerprint() != shapes(data_dir).fingerprint()


def test_a_missing_set_is_reported_without_the_network(tmp_path, monkeypatch):
    def no_network(*_):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    with pytest.raises(UsageError, match="mnist.*tfds build mnist"):
        open_tfds(dataset="mnist", path=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": {"train": "trian"}}, "TFDS rejects 'trian': Unknown split 'trian'"),
        ({"group": "patent"}, "'patent'; did you mean 'patient'"),
        ({"group": "image"}, "'image' must be a single integer or string"),
        ({"dataset": "zzzzzzzzzzzz"}, "'zzzzzzzzzzzz': .*; the names are at"),
        ({"dataset": ""}, "--source.dataset"),
        ({"dataset": "bare"}, "bare cannot be learned"),
    ],
)
def test_wrong_options_are_rejected(data_dir, options, message):
    with pytest.raises(UsageError, match=message):
        open_tfds(**{"dataset": "shapes", "path": data_dir, **options})


DAMAGED = {
    "truncated between records": (
        lambda p, raw, at: p.write_bytes(raw[: at[7]]),
        "has 7 records, but .*json lists 12",
    ),
    "missing": (lambda p, raw, at: p.unlink(), "cannot be read: No such file"),
    "a changed byte": (
        lambda p, raw, at: p.write_bytes(
            raw[: at[5] + 20] + b"\xff" + raw[at[5] + 21 :]
        ),
        "record 5 is damaged",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_shard_is_named(copy, case):
    (shard,) = (copy / "shapes").rglob("*test.tfrecord*")
    damage, message = DAMAGED[case]
    damage(shard, shard.read_bytes(), index_files([shard]).offsets)
    with pytest.raises(UsageError, match=f"shapes-test.*of-00001.*{message}"):
        shapes(copy).columns("test")


def test_recordings_are_wav_files(tmp_path):
    samples = [[1, -32768, 32767], list(range(500)), [7] * 90]
    features = {
        "audio": tfds.features.Audio(sample_rate=16000, dtype=np.int16),
        "label": tfds.features.ClassLabel(names=["no", "yes"]),
    }

    def rows():
        for number, values in enumerate(samples):
            yield {"audio": np.array(values, np.int16), "label": number % 2}

    signature = {
        "audio": tf.TensorSpec((None,), tf.int16),
        "label": tf.TensorSpec((), tf.int64),
    }
    tfds.dataset_builders.store_as_tfds_dataset(
        name="words",
        version="1.0.0",
        data_dir=tmp_path,
        features=tfds.features.FeaturesDict(features),
        split_datasets={
            "train": tf.data.Dataset.from_generator(rows, output_signature=signature)
        },
    )
    source = open_tfds(dataset="words", path=tmp_path)
    assert source.columns("train")["label"].tolist() == [0, 1, 0]
    assert source.info.class_names == ("no", "yes")
    read = source.reader("train")
    for number, (row, values) in enumerate(
        zip(source.examples("train"), samples, strict=True)
    ):
        facts = audio_decoding.header(row["audio"])
        assert (int(facts.rate), int(facts.frames)) == (16000, len(values))
        decoded = audio_decoding.decode_wav(row["audio"], 16000, len(values))
        assert decoded.numpy().tolist() == values
        position = tf.constant(number, tf.int64)
        assert read(position)["audio"] == row["audio"]


def test_boxes_of_a_sequence_are_in_pixels(tmp_path):
    """As in `voc`: fractions of the image, with flags and other classes beside them."""
    generator = np.random.default_rng(0)
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "objects": tfds.features.Sequence(
                {
                    "bbox": tfds.features.BBoxFeature(),
                    "is_difficult": np.bool_,
                    "label": tfds.features.ClassLabel(names=["cat", "dog"]),
                    "pose": tfds.features.ClassLabel(names=["left", "right"]),
                }
            ),
        }
    )
    corners = np.array([[0.1, 0.2, 0.5, 0.75], [0, 0, 1, 0.5]], np.float32)

    def examples():
        for count in range(3):
            yield {
                "image": generator.integers(0, 256, (20 + count, 40, 3), np.uint8),
                "objects": {
                    "bbox": corners[:count],
                    "is_difficult": np.array([False, True])[:count],
                    "label": np.array([1, 0])[:count],
                    "pose": np.array([0, 1])[:count],
                },
            }

    objects = {
        "bbox": tf.TensorSpec((None, 4), tf.float32),
        "is_difficult": tf.TensorSpec((None,), tf.bool),
        "label": tf.TensorSpec((None,), tf.int64),
        "pose": tf.TensorSpec((None,), tf.int64),
    }
    image = tf.TensorSpec((None, None, 3), tf.uint8)
    stored = tf.data.Dataset.from_generator(
        examples, output_signature={"image": image, "objects": objects}
    )
    tfds.dataset_builders.store_as_tfds_dataset(
        name="pets",
        version="1.0.0",
        data_dir=tmp_path,
        features=features,
        split_datasets={"train": stored},
    )
    source = open_tfds(dataset="pets", path=tmp_path)
    assert source.info.class_names == ("cat", "dog")
    rows = list(source.examples("train").as_numpy_iterator())
    rows.sort(key=lambda row: (row["box_labels"] >= 0).sum())
    for count, row in enumerate(rows):
        for name, spec in source.info.fields.items():
            assert spec.is_compatible_with(tf.convert_to_tensor(row[name]))
        assert row["box_labels"][:3].tolist() == [*[1, 0][:count], *[-1] * (3 - count)]
    height = 22
    expected = [[8, 0.1 * height, 30, 0.5 * height], [0, 0, 20, height]]
    np.testing.assert_allclose(rows[2]["boxes"][:2], expected, rtol=1e-5)
    assert rows[2]["box_ignored"][:3].tolist() == [0, 1, 0]
    assert not rows[0]["boxes"].any()
