"""Arrays in files: one .npz in memory, or a folder of .npy files read in pieces."""

import resource

import numpy as np
import pytest
import tensorflow as tf
from conftest import images_and_labels

from pipeline.config import registry
from pipeline.utils.errors import UsageError


def take(path):
    return registry.load("sources", "arrays")(path=path)


def save(folder, images=None, labels=None, **more):
    folder.mkdir(parents=True, exist_ok=True)
    good_images, good_labels = images_and_labels(12, (4, 5, 3))
    arrays = {"images": images, "labels": labels, **more}
    arrays["images"] = good_images if images is None else images
    arrays["labels"] = good_labels if labels is None else labels
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return arrays


def read(source, split="train"):
    return list(source.examples(split).as_numpy_iterator())


def test_a_folder_gives_what_its_files_hold(tmp_path):
    arrays = save(tmp_path, class_names=["a", "b", "c"], groups=["x", "y"] * 6)
    source = take(tmp_path)
    assert source.info.splits == {"train": 12} and source.info.class_names == ("a", "b", "c")
    assert source.info.fields["image"] == tf.TensorSpec((4, 5, 3), tf.uint8)
    examples = read(source)
    np.testing.assert_array_equal([e["image"] for e in examples], arrays["images"])
    assert [e["label"] for e in examples] == arrays["labels"].tolist()
    assert [e["id"] for e in examples] == list(range(12))
    assert len({e["group"] for e in examples}) == 2
    assert source.location(7) == f"example 7 of {tmp_path.name}/images.npy"


def test_labels_may_be_a_column(tmp_path, npz):
    """As keras.datasets gives them."""
    save(tmp_path, labels=(np.arange(12) % 3)[:, None])
    assert take(tmp_path).columns("train")["label"].tolist() == [0, 1, 2] * 4
    source = take(npz(labels=(np.arange(60) % 3)[:, None]))
    assert source.columns("train")["label"].tolist() == [0, 1, 2] * 20


@pytest.mark.parametrize("shape", [(6, 7), (4, 5, 3)])
def test_a_position_is_read_as_the_sequence_has_it(tmp_path, shape):
    save(tmp_path, images_and_labels(12, shape)[0])
    with (tmp_path / "images.npy").open("ab") as file:
        file.write(b"more")  # NumPy passes by what stands behind the array
    source = take(tmp_path)
    order = np.random.default_rng(0).permutation(12)
    found = tf.data.Dataset.from_tensor_slices(order).map(source.reader("train"))
    examples = read(source)
    for position, example in zip(order, found.as_numpy_iterator(), strict=True):
        assert set(example) == set(source.info.fields)
        for name, value in example.items():
            np.testing.assert_array_equal(value, examples[position][name])
    columns = source.columns("train")
    assert columns["label"].tolist() == [e["label"] for e in examples]


def test_splits_are_folders(tmp_path):
    save(tmp_path / "train", class_names=["a", "b", "c", "d"])
    save(tmp_path / "val", images_and_labels(5, (4, 5, 3))[0], np.full(5, 3))
    save(tmp_path / "test")
    source = take(tmp_path)
    assert source.info.splits == {"train": 12, "validation": 5, "test": 12}
    ids = [e["id"] for split in source.info.splits for e in read(source, split)]
    assert len(set(ids)) == 29
    assert source.location(int(ids[12])) == "example 0 of val/images.npy"


def test_other_arrays_have_another_fingerprint(tmp_path, npz):
    save(tmp_path / "folder")
    before = take(tmp_path / "folder").fingerprint()
    assert take(tmp_path / "folder").fingerprint() == before
    save(tmp_path / "folder", labels=np.arange(12) % 2)
    assert take(tmp_path / "folder").fingerprint() != before
    file = take(npz()).fingerprint()
    assert take(npz()).fingerprint() == file
    images, _ = images_and_labels()
    images[59, 5, 5, 0] ^= 1
    assert take(npz(images)).fingerprint() != file


def test_a_file_is_read_by_position_too(npz):
    source = take(npz(groups=np.arange(60) // 2))
    example = source.reader("train")(tf.constant(31, tf.int64))
    assert example["group"] == 15 and example["id"] == 31
    np.testing.assert_array_equal(example["image"], images_and_labels()[0][31])
    assert source.location(31) == "example 31 of examples.npz"
    assert source.columns("train")["group"].tolist() == [at // 2 for at in range(60)]


def test_images_are_never_read_whole(tmp_path):
    """A sparse file of 64 GB, which no machine of these tests could hold."""
    save(tmp_path, labels=np.arange(2**16) % 2)
    header = np.lib.format.header_data_from_array_1_0(np.zeros(0, np.uint8))
    header["shape"] = (2**16, 1024, 1024, 1)
    with (tmp_path / "images.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 2**36)
        file.seek(-1, 2)
        file.write(b"\7")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    source = take(tmp_path)
    last = source.reader("train")(tf.constant(2**16 - 1, tf.int64))["image"]
    assert last.shape == (1024, 1024, 1) and last.numpy().sum() == 7
    assert not next(iter(source.examples("train")))["image"].numpy().any()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def cut(folder):
    path = folder / "images.npy"
    path.write_bytes(path.read_bytes()[:-1])


CASES = {
    "no labels": (lambda f: (f / "labels.npy").unlink(), "has no labels.npy"),
    "fewer labels": (lambda f: save(f, labels=np.zeros(11, int)), "12 images but 11 labels"),
    "a cut file": (cut, "images.npy is no whole .npy file of a plain array"),
    "another file": (
        lambda f: (f / "labels.npy").write_bytes(b"<html>"),
        "labels.npy is no whole .npy file",
    ),
    "a pickle": (
        lambda f: save(f, labels=np.array([{}] * 12)),
        "labels.npy is no whole .npy file of a plain array",
    ),
    "floats": (
        lambda f: save(f, np.zeros((12, 4, 4, 3))),
        r"images must be uint8 .*float64.*np.rint\(images \* 255\)",
    ),
    "one-hot labels": (
        lambda f: save(f, labels=np.eye(3)[np.arange(12) % 3]),
        r"labels must be whole .* shape \(12, 3\); for one-hot labels save np.argmax\(labels, 1\)",
    ),
    "columns first": (
        lambda f: save(f, np.asfortranarray(images_and_labels(12, (4, 5, 3))[0])),
        "images.npy is in Fortran's order; save numpy.ascontiguousarray",
    ),
    "no examples": (
        lambda f: save(f, np.zeros((0, 4, 4, 3), np.uint8), np.zeros(0, int)),
        "holds no examples",
    ),
    "groups of pairs": (lambda f: save(f, groups=np.zeros((12, 2), int)), "groups must be whole"),
    "a class without an example": (
        lambda f: save(f, labels=np.full(12, 2)),
        "no example has label 0; .* .class_names",
    ),
    "another size in the test": (
        lambda f: (save(f / "train"), save(f / "test", images_and_labels(12, (4, 4, 3))[0])),
        r"test: images of shape \(4, 4, 3\), those of train have \(4, 5, 3\)",
    ),
    "other classes in the test": (
        lambda f: (
            save(f / "train", class_names=["a", "b", "c", "d"]),
            save(f / "test", class_names=["b", "a", "c", "d"]),
        ),
        "test/class_names.npy names other classes than train's, or in another order",
    ),
    "two validations": (
        lambda f: (save(f / "train"), save(f / "val"), save(f / "valid")),
        "has valid and val, which are one split",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_folder_is_refused_by_name(tmp_path, case):
    save(tmp_path)
    spoil, message = CASES[case]
    spoil(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        take(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "wrong"),
    [
        (np.array([0, 1] * 5 + [2**64 - 1, 0], np.uint64), "18446744073709551615 of example 10"),
        (np.array([0, 1] * 5 + [0, -(2**63)], np.int64), "-9223372036854775808 of example 11"),
        (np.array([0, 1] * 5 + [1e300, 0]), "1e+300 of example 10"),
    ],
)
def test_labels_that_no_integer_holds_are_named(tmp_path, labels, wrong):
    save(tmp_path, labels=labels)
    with pytest.raises(UsageError) as caught:
        registry.load("sources", "arrays")(path=tmp_path)
    assert f"label {wrong} is no class (1 such labels)" in str(caught.value)
