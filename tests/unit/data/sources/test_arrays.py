"""Arrays in files: one .npz in memory, or a directory of .npy files read in pieces."""

import numpy as np
import pytest
import tensorflow as tf
from random_images import images_and_labels
from toy_problem import read

from pipeline.data.sources.arrays import arrays
from pipeline.data.sources.scikit_learn import scikit_learn
from pipeline.utils.errors import UsageError

IMAGES, LABELS = images_and_labels(12, (4, 5, 3))


def save(folder, **columns):
    """A directory of good arrays, except for the given ones; False omits one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in {"images": IMAGES, "labels": LABELS, **columns}.items():
        if array is not False:
            np.save(folder / f"{name}.npy", array)
    return folder


def save_archive(folder, **columns):
    columns = {"images": IMAGES, "labels": LABELS, **columns}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "a.npz", **{k: v for k, v in columns.items() if v is not False})
    return folder / "a.npz"


SAVES = {"archive": save_archive, "directory": save}


@pytest.mark.parametrize("kind", SAVES)
def test_the_examples_are_the_content_of_the_files(tmp_path, kind):
    path = SAVES[kind](tmp_path, class_names=["a", "b", "c"], groups=["x", "y"] * 6)
    source = arrays(path=path)
    assert source.info.splits == {"train": 12} and source.info.class_names == (
        "a",
        "b",
        "c",
    )
    assert source.info.fields["image"] == tf.TensorSpec((4, 5, 3), tf.uint8)
    examples = read(source)
    np.testing.assert_array_equal([e["image"] for e in examples], IMAGES)
    assert [e["label"] for e in examples] == LABELS.tolist()
    assert [e["id"] for e in examples] == list(range(12))
    names = source.group_names()
    assert [e["group"] for e in examples] == [names["x"], names["y"]] * 6
    numbers = SAVES[kind](tmp_path / "n", groups=[3, -7] * 6)
    assert arrays(path=numbers).group_names() == {"3": 3, "-7": -7}
    assert source.location(7) == f"example 7 of {path.name}"


@pytest.mark.parametrize("kind", SAVES)
def test_labels_may_be_a_column_and_images_lack_channels(tmp_path, kind):
    """As in keras.datasets."""
    source = arrays(
        path=SAVES[kind](tmp_path, images=IMAGES[..., 0], labels=LABELS[:, None])
    )
    assert source.columns("train")["label"].tolist() == [0, 1, 2] * 4
    assert source.info.fields["image"].shape == (4, 5, 1)
    assert source.info.class_names == ("0", "1", "2")


def test_splits_are_directories(tmp_path):
    save(tmp_path / "train", class_names=["a", "b", "c", "d"])
    save(tmp_path / "val", images=IMAGES[:5], labels=np.full(5, 3))
    save(tmp_path / "test")
    source = arrays(path=tmp_path)
    assert source.info.splits == {"train": 12, "validation": 5, "test": 12}
    ids = [e["id"] for split in source.info.splits for e in read(source, split)]
    assert len(set(ids)) == 29
    assert source.location(int(ids[12])) == f"example 0 of {tmp_path.name}/validation"


@pytest.mark.parametrize("kind", SAVES)
def test_other_arrays_have_another_fingerprint(tmp_path, kind):
    before = arrays(path=SAVES[kind](tmp_path)).fingerprint()
    changed = IMAGES.copy()
    changed[11, 3, 4, 2] ^= 1
    assert arrays(path=SAVES[kind](tmp_path, images=changed)).fingerprint() != before
    assert (
        arrays(path=SAVES[kind](tmp_path, labels=LABELS[::-1])).fingerprint() != before
    )


WRONG = {
    "fewer labels": ({"labels": LABELS[:11]}, "the lengths of x and y must be equal"),
    "no examples": (
        {"images": IMAGES[:0], "labels": LABELS[:0]},
        "of shape .0, 4, 5, 3",
    ),
    "int64": ({"images": IMAGES.astype(int)}, "uint8, uint16 or float32 .*; got int64"),
    "not finite": (
        {"images": np.full(IMAGES.shape, np.nan)},
        r"x\[0, 0, 0, 0\] is nan",
    ),
    "rank 2": (
        {"images": IMAGES.reshape(12, -1)},
        r"images must be .* of shape \(n, height, width",
    ),
    "a fraction": (
        {"labels": LABELS / 2},
        "labels .*whole numbers .* example 1 has 0.5",
    ),
    "a gap": (
        {"labels": LABELS + (LABELS > 1)},
        "no example has label 2; .*class_names",
    ),
    "two labels": (
        {"labels": np.ones((12, 3))},
        r"must be one-hot, but example 0 has 3 classes",
    ),
    "names twice": ({"class_names": ["a", "a", "b"]}, "class_names must be distinct"),
    "no images": ({"images": False}, "one field .* named images or .*; it has labels"),
    "no labels": ({"labels": False}, "one field .* named labels or .*; it has images"),
    "two inputs": (
        {"x": IMAGES},
        "exactly one .* named images .*; it has images, labels, x",
    ),
    "two targets": (
        {"masks": LABELS},
        "exactly one .* labels .*; it has images, labels, masks",
    ),
    "labels as targets": (
        {"labels": False, "targets": LABELS.astype(str)},
        "y is <U21 .* pass numbers to predict",
    ),
    "small masks": (
        {"labels": False, "masks": IMAGES[:, :2, :, 0]},
        r"images \(4x5\); got uint8 of shape \(12, 2, 5\)",
    ),
    "flat features": (
        {"images": False, "features": IMAGES[..., None]},
        r"of shape \(12, 4, 5, 3, 1\); features are",
    ),
    "a pickle": ({"labels": np.array([{}] * 12)}, "is not an? .*of (a )?plain array"),
}


@pytest.mark.parametrize("kind", SAVES)
@pytest.mark.parametrize("case", WRONG)
def test_wrong_arrays_are_rejected(tmp_path, case, kind):
    columns, message = WRONG[case]
    path = SAVES[kind](tmp_path, **columns)
    with pytest.raises(UsageError, match=message) as caught:
        arrays(path=path)
    assert "\n" not in str(caught.value)


def truncate_array(folder):
    path = save(folder) / "images.npy"
    path.write_bytes(path.read_bytes()[:-1])


DIRECTORIES = {
    "a truncated file": (truncate_array, "images.npy is not a complete .npy"),
    "another size in the test": (
        lambda f: (save(f / "train"), save(f / "test", images=IMAGES[:, :, :4])),
        r"image of test .*\(4, 4, 3\).*differs",
    ),
}


@pytest.mark.parametrize("case", DIRECTORIES)
def test_wrong_directories_are_rejected(tmp_path, case):
    spoil, message = DIRECTORIES[case]
    spoil(tmp_path)
    with pytest.raises(UsageError, match=message):
        arrays(path=tmp_path)


def test_damaged_archives_are_rejected(tmp_path):
    path = tmp_path / "x.npz"
    for content in (b"", b"PK\x03\x04 no zip", b"\x93NUMPY", b"\x80\x04K\x01."):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"x\.npz is not an \.npz of plain arrays"):
            arrays(path=path)


NUMBERS = np.linspace(0, 1, 24).reshape(12, 2)
ROWS = np.tile([[1, 1], [0, 0], [0, 1]], (4, 1))
# Name -> arrays, and fields.
OTHERS = {
    "features and labels": ({"features": NUMBERS, "labels": LABELS}, "features label"),
    "features and targets": (
        {"features": NUMBERS, "targets": NUMBERS[:, 0]},
        "features target",
    ),
    "whole targets": ({"features": NUMBERS, "targets": LABELS}, "features target"),
    "images and targets": ({"images": IMAGES, "targets": LABELS}, "image target"),
    "images and masks": ({"images": IMAGES, "masks": IMAGES[..., 0] % 3}, "image mask"),
    "images as features": (
        {"features": IMAGES[..., 0], "labels": LABELS},
        "features label",
    ),
    "x and y, classes": ({"x": NUMBERS, "y": LABELS}, "features label"),
    "x and y, numbers": ({"x": NUMBERS, "y": NUMBERS}, "features target"),
    "x and y, several labels": ({"x": IMAGES, "y": ROWS}, "image labels"),
    "x and y, masks": ({"x": IMAGES, "y": IMAGES[..., 0] % 3}, "image mask"),
}


@pytest.mark.parametrize("kind", SAVES)
@pytest.mark.parametrize("case", OTHERS)
def test_other_keys_have_other_fields(tmp_path, case, kind):
    columns, fields = OTHERS[case]
    without = {"images": False, "labels": False}
    source = arrays(path=SAVES[kind](tmp_path, **{**without, **columns}))
    assert set(source.info.fields) == {"id", *fields.split()}
    assert len(read(source)) == 12
    is_named = bool({"label", "labels", "mask"} & set(source.info.fields))
    assert (source.info.class_names is not None) == is_named
    assert bool(source.info.notes) == (case in NOTED)


NOTED = ("x and y, classes", "x and y, several labels")


def test_the_arrays_of_train_decide_for_all_splits(tmp_path):
    without = {"images": False, "labels": False}
    save(tmp_path / "train", x=NUMBERS, y=ROWS, **without)
    save(tmp_path / "test", x=NUMBERS, y=np.eye(2)[LABELS // 2], **without)
    source = arrays(path=tmp_path)
    assert source.columns("test")["labels"].tolist() == np.eye(2)[LABELS // 2].tolist()


def test_tables_of_scikit_learn_have_names():
    shapes = {"iris": (150, 4, 3), "wine": (178, 13, 3), "breast_cancer": (569, 30, 2)}
    for dataset, (count, features, classes) in shapes.items():
        source = scikit_learn(dataset=dataset)
        assert source.info.splits == {"train": count}
        assert source.info.fields["features"] == tf.TensorSpec((features,), tf.float32)
        assert source.info.fields["label"] == tf.TensorSpec((), tf.int64)
        assert len(source.info.feature_names) == features
        assert len(source.info.class_names) == classes
    assert scikit_learn(dataset="iris").info.class_names[0] == "setosa"
    for dataset, shape in {"diabetes": (), "linnerud": (3,)}.items():
        info = scikit_learn(dataset=dataset).info
        assert info.fields["target"] == tf.TensorSpec(shape, tf.float32)
        assert info.class_names is None and info.feature_names


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    images = np.stack(
        [example["image"] for example in read(scikit_learn(dataset="digits"))]
    )
    assert images.shape == (1797, 8, 8, 1) and images.dtype == np.uint8
    np.testing.assert_array_equal(
        np.rint(images[..., 0] * (16 / 255)), load_digits().images
    )
