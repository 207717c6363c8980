"""Every source gives the same examples in the same order, each with its own id."""

import io
import wave

import box_data
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image
from random_images import images_and_labels
from registered_functions import options_of
from toy_problem import read

from pipeline.config import registry
from pipeline.contracts import Source
from pipeline.utils.tf_data import is_short

SOURCES = registry.names("sources")
IMAGES, LABELS = images_and_labels(24, (6, 5, 3))


def png(image) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def arrays(root):
    np.savez(root / "examples.npz", images=IMAGES, labels=LABELS)
    return {"path": root / "examples.npz"}


def folder(root):
    for number, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
        path = root / f"class {label}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(png(image))
    return {"path": root}


def table(root):
    folder(root)
    rows = [
        f"class {label}/{number}.png,{label}" for number, label in enumerate(LABELS)
    ]
    (root / "labels.csv").write_text("\n".join(["path,label", *rows]))
    return {"path": root / "labels.csv"}


def masks(root):
    for number, image in enumerate(IMAGES):
        for kind, values in (("images", image), ("masks", image[..., 0] // 128)):
            (root / kind).mkdir(exist_ok=True)
            (root / kind / f"{number}.png").write_bytes(png(values))
    return {"path": root}


def speech(root):
    lines = []
    for number in range(24):
        with wave.open(str(root / f"1-2-{number}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(np.full(800, number, "<i2").tobytes())
        lines.append(f"1-2-{number} SAY {number}\n")
    (root / "1-2.trans.txt").write_text("".join(lines))
    return {"path": root}


def tfrecord(root):
    with tf.io.TFRecordWriter(str(root / "train.tfrecord")) as writer:
        for image, label in zip(IMAGES, LABELS, strict=True):
            example = tf.train.Example()
            example.features.feature["image"].bytes_list.value.append(png(image))
            example.features.feature["label"].int64_list.value.append(label)
            writer.write(example.SerializeToString())
    return {"path": root}


def tensorflow_datasets(root):
    features = {
        "image": tfds.features.Image(shape=(6, 5, 3)),
        "label": tfds.features.ClassLabel(num_classes=3),
    }
    examples = tf.data.Dataset.from_tensor_slices({"image": IMAGES, "label": LABELS})
    tfds.dataset_builders.store_as_tfds_dataset(
        name="shapes",
        version="1.0.0",
        data_dir=root,
        features=tfds.features.FeaturesDict(features),
        split_datasets={"train": examples},
    )
    return {"dataset": "shapes", "path": root}


# A source that reads files needs some of them; any other one is called with
# `options_of`.
DATA = {"arrays": arrays, "folder": folder, "table": table}
DATA["masks"] = masks
DATA["speech"] = speech
DATA["tfrecord"] = tfrecord
DATA["scikit_learn"] = lambda root: {"dataset": "iris"}  # the smallest of three classes
DATA["tfds"] = tensorflow_datasets
BOXES = box_data.pictures(24, size=(60, 80))


def boxes(write):
    def make(root):
        write(root, BOXES)
        return {"path": root}

    return make


DATA["coco"] = boxes(box_data.write_coco)
DATA["voc"] = boxes(box_data.write_voc)
DATA["yolo"] = boxes(box_data.write_yolo)
DATA["labelme"] = boxes(box_data.write_labelme)


def box_table(root):
    rows = ["path,label,xmin,ymin,xmax,ymax"]
    for number, (pixels, corners, labels) in enumerate(BOXES):
        box_data.save(root / f"{number}.png", pixels)
        for box, label in zip(corners, labels, strict=True):
            rows.append(",".join(map(str, (f"{number}.png", label, *box))))
        if not labels:
            rows.append(f"{number}.png,,,,,")
    (root / "boxes.csv").write_text("\n".join(rows))
    return {"path": root / "boxes.csv"}


DATA["box_table"] = box_table


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Opens a source, each time anew, on the same data."""
    options = {}

    def again(name):
        if name not in options:
            make = DATA.get(name, lambda root: options_of("sources", name))
            options[name] = make(tmp_path_factory.mktemp(name))
        registry.check("sources", name, options[name], "{}")
        return registry.call("sources", name, options[name])

    return again


def same(one, other):
    assert set(one) == set(other)
    for field, value in one.items():
        np.testing.assert_array_equal(value, other[field])


@pytest.mark.parametrize("name", SOURCES)
def test_info_describes_the_examples(name, opened):
    source = opened(name)
    assert isinstance(source, Source) and "train" in source.info.splits
    ids = []
    labels = set()
    for split, count in source.info.splits.items():
        examples = source.examples(split)
        found = read(source, split)
        assert len(found) == count > 0
        ids += [int(example["id"]) for example in found]
        labels |= {int(example["label"]) for example in found if "label" in example}
        assert set(examples.element_spec) == set(source.info.fields)
        for field, spec in source.info.fields.items():
            given = examples.element_spec[field]
            assert given.dtype == spec.dtype and given.shape.is_compatible_with(
                spec.shape
            )
    assert source.info.fields["id"].dtype == tf.int64
    assert len(set(ids)) == len(ids), "ids are not unique"
    assert labels <= set(range(len(source.info.class_names or ())))
    assert source.location(ids[0]) and source.location(ids[0]) != source.location(
        ids[-1]
    )


@pytest.mark.parametrize("name", SOURCES)
def test_examples_columns_and_reader_agree(name, opened):
    source = opened(name)
    examples = read(source)
    for one, other in zip(examples, read(opened(name)), strict=True):
        same(one, other)
    assert source.fingerprint() == opened(name).fingerprint()
    columns = source.columns("train")
    short = {field for field, spec in source.info.fields.items() if is_short(spec)}
    assert set(columns) == short >= {"id"}
    for field, column in columns.items():
        np.testing.assert_array_equal(
            column, np.stack([example[field] for example in examples])
        )
    keys = source.split_keys("train")
    assert {"id"} <= set(keys) <= short and ("group" in keys) == ("group" in short)
    for field, column in keys.items():
        np.testing.assert_array_equal(column, columns[field])
    groups = set(columns.get("group", np.empty(0)).tolist())
    assert set(source.group_names().values()) == groups
    places = tf.data.Dataset.from_tensor_slices(np.array([5, 0, 17])).map(
        source.reader("train")
    )
    for place, found in zip((5, 0, 17), places.as_numpy_iterator(), strict=True):
        same(examples[place], found)


@pytest.mark.parametrize("name", SOURCES)
def test_a_task_can_decode_and_check_it(name, opened):
    """Each of these sources has fields that suit one input and one target."""
    source = opened(name)
    task = registry.call("tasks", "supervised", {}, source.info)
    decoded = [task.decode(example) for example in source.examples("train").take(3)]
    assert all(example["id"].dtype == tf.int64 for example in decoded)
    task.check(source.columns("train"), "train", source.location)
