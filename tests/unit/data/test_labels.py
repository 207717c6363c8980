"""Labels in every form of users become the same numbers; class names, the
same names.
"""

import decimal

import numpy as np
import pandas
import pytest
import tensorflow as tf

from pipeline.data import labels
from pipeline.utils.errors import UsageError

NUMBERS = np.array([2, 0, 1, 0, 2], np.int64)
NAMES = np.array(["cow", "ant", "bee", "ant", "cow"])
SAME_NUMBERS = {
    "float32": NUMBERS.astype(np.float32),
    "float16 (n, 1)": NUMBERS[:, None].astype(np.float16),
    "uint8 (n, 1, 1)": NUMBERS[:, None, None].astype(np.uint8),
    "big-endian": NUMBERS.astype(">i4"),
    "bfloat16 tensor": tf.constant(NUMBERS, tf.bfloat16),
    "objects": np.array(
        [2, np.int8(0), 1.0, decimal.Decimal(0), np.float32(2)], object
    ),
    "nullable pandas": pandas.array(NUMBERS, "Int64"),
    "list": NUMBERS.tolist(),
    "one-hot float": np.eye(3)[NUMBERS],
    "one-hot bool": np.eye(3, dtype=bool)[NUMBERS],
    "one-hot tensor": tf.one_hot(NUMBERS, 3),
    "one-hot objects": np.eye(3)[NUMBERS].astype(object),
    "one-hot table": pandas.get_dummies(pandas.Series(NAMES)),
}
SAME_STRINGS = {
    "strings": NAMES,
    "bytes": NAMES.astype(bytes),
    "bytes (n, 1)": NAMES.astype(bytes)[:, None],
    "string tensor": tf.constant(NAMES),
    "objects": NAMES.astype(object),
    "NumPy's StringDType": NAMES.astype(np.dtypes.StringDType()),
    "categories": pandas.Series(NAMES, dtype="category"),
}


@pytest.mark.parametrize("kind", SAME_NUMBERS)
def test_numbers_of_every_form_are_the_same_labels(kind):
    converted = labels.labels_of(SAME_NUMBERS[kind], "train")
    assert converted.dtype == np.int64
    np.testing.assert_array_equal(converted, NUMBERS)


@pytest.mark.parametrize("kind", SAME_STRINGS)
def test_strings_of_every_form_are_the_same_labels(kind):
    converted = labels.labels_of(SAME_STRINGS[kind], "train")
    assert converted.dtype.kind == "U" and converted.tolist() == NAMES.tolist()


def test_booleans_are_0_and_1():
    assert labels.labels_of(np.array([True, False]), "train").tolist() == [1, 0]
    assert labels.labels_of(pandas.array([True, False]), "train").tolist() == [1, 0]


def test_text_of_whole_floats_is_that_of_whole_numbers():
    assert labels.labels_of(["1.0", "10.0", "2"], "train").tolist() == ["1", "10", "2"]
    assert labels.labels_of(["1.0", "2.0"], "train").tolist() == ["1", "2"]
    assert labels.labels_of(["1.0", "1.5"], "train").tolist() == ["1.0", "1.5"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.0, 1.0, float("nan")], r"example 2 has no label \(nan\)"),
        (np.array([0, None, 1], object), r"example 1 has no label \(None\)"),
        (pandas.array([1, None], "Int64"), "example 1 has no label"),
        (["a", "b", "nan"], "example 2 has no label"),
        (["a", ""], "example 1 has no label"),
        (np.array(["a", 3], object), "all strings or all numbers; example 1 has 3"),
        ([0.0, 1.0, 0.25], r'example 2 has 0.25.*task=\{"target": "number'),
        (np.full((4, 2), 0.5), r"\(4, 2\) .* soft labels, y.argmax.*number"),
        (
            np.array([[1, 0, 0], [1, 0, 1]]),
            r'example 1 has 2 .*task=\{"target": "labels',
        ),
        (np.array([[1, 0], [0, 0]]), "example 1 has 0 classes instead of one"),
        (np.array([[3, 4], [1, 2]]), "example 0 has other numbers than 0 and 1"),
        (np.array([{}, {}]), r"example 0 has \{\}"),
        (np.zeros((2, 3, 4)), r"got float64 of shape \(2, 3, 4\)"),
        (np.array([1j, 2]), "got complex128"),
    ],
)
def test_other_labels_are_named_in_one_line(values, message):
    with pytest.raises(UsageError, match=message) as caught:
        labels.labels_of(values, "train")
    assert str(caught.value).startswith("train: ") and "\n" not in str(caught.value)


CLASS_NAMES = {
    "array": np.array(["a", "b"]),
    "bytes": [b"a", "b"],
    "tensor": tf.constant(["a", "b"]),
    "index": pandas.Index(["a", "b"]),
    "class_indices": {"b": 1, "a": 0},
    "numbers to names": {1: "b", 0: "a"},
    "keys of a JSON file": {"1": "b", "0": "a"},
}


@pytest.mark.parametrize("kind", CLASS_NAMES)
def test_class_names_of_every_form_are_the_same(kind):
    assert labels.class_names_of(CLASS_NAMES[kind], "class_names") == ("a", "b")


def test_whole_numbers_and_booleans_are_names():
    assert labels.class_names_of(range(3), "class_names") == ("0", "1", "2")
    assert labels.class_names_of(np.array([3.0, 1.0]), "class_names") == ("3", "1")
    assert labels.class_names_of({7: 0, 5: 1}, "class_names") == ("7", "5")
    assert labels.class_names_of(np.array([False, True]), "class_names") == (
        "False",
        "True",
    )


@pytest.mark.parametrize(
    "value",
    [
        "cat",
        3,
        None,
        [],
        [["a", "b"]],
        [0.5, 1],
        {"a": 0, "b": 2},
        {"a": "b"},
        ["a", "a"],
    ],
)
def test_other_class_names_are_refused(value):
    with pytest.raises(UsageError, match="^class_names"):
        labels.class_names_of(value, "class_names")


def test_numbers_are_in_the_order_of_their_values():
    assert labels.in_order(["10", "9", "0", "2"]) == ["0", "2", "9", "10"]
    assert labels.in_order(["1.5", "-1", "10"]) == ["-1", "1.5", "10"]
    assert labels.in_order(["02", "1", "01", "10"]) == ["1", "01", "02", "10"]
    assert labels.in_order(["10", "9", "nine"]) == ["10", "9", "nine"]


def test_a_split_of_numbers_beside_one_of_strings_is_matched_by_name():
    tables = {
        "train": {"label": np.array(["1", "2", "10"])},
        "test": {"label": np.array([10, 1])},
    }
    assert labels.encode_labels(tables, None, "class_names") == ("1", "2", "10")
    assert tables["test"]["label"].tolist() == [2, 0]


NAME_SETS = [("cow", "ant"), (), ("bee",)]


def sets(*rows):
    """Several labels per example, as `arrays.examples` converts them."""
    values = np.empty(len(rows), object)
    values[:] = rows
    return values


def test_several_labels_become_rows_with_the_same_columns_in_all_splits():
    tables = {
        "train": {"labels": sets(*NAME_SETS)},
        "test": {"labels": sets(("ant",), ("bee", "cow"))},
    }
    assert labels.encode_targets(tables, None, "class_names") == ("ant", "bee", "cow")
    assert tables["train"]["labels"].tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert tables["test"]["labels"].tolist() == [[1, 0, 0], [0, 1, 1]]
    assert tables["test"]["labels"].dtype == np.uint8


def test_several_labels_are_in_the_order_of_their_values_or_of_the_names():
    tables = {"train": {"labels": sets(("10", "9"), ("2",))}}
    assert labels.encode_targets(tables, None, "class_names") == ("2", "9", "10")
    tables = {"train": {"labels": sets(*NAME_SETS)}}
    names = ("bee", "cow", "ant", "dog")
    assert labels.encode_targets(tables, names, "class_names") == names
    assert tables["train"]["labels"][0].tolist() == [0, 1, 1, 0]


def test_a_label_unknown_in_train_is_named():
    tables = {
        "train": {"labels": sets(*NAME_SETS)},
        "test": {"labels": sets(("ant", "bea"))},
    }
    with pytest.raises(UsageError, match="test: .*'bea' is not one of.*mean 'bee'"):
        labels.encode_targets(tables, None, "class_names")
    tables = {"train": {"labels": np.eye(3, dtype=np.uint8)}}
    with pytest.raises(UsageError, match="train: y has 3 columns for 2 classes"):
        labels.encode_targets(tables, ("a", "b"), "class_names")


def masks(*values):
    return {"mask": np.array(values, np.uint8).reshape(1, 1, -1)}


def test_masks_number_the_classes_of_all_splits():
    tables = {"train": masks(0, 1), "test": masks(3, 0)}
    names = labels.encode_targets(tables, None, "class_names")
    assert names == ("0", "1", "2", "3")
    assert labels.encode_targets(tables, tuple("abcde"), "") == tuple("abcde")
    for values in ((0, 255), (0, 128, 255), (0, 0)):  # the target says what they mean
        tables = {"train": masks(*values)}
        assert labels.encode_targets(tables, None, "class_names") is None


def test_numbers_have_no_class_names():
    tables = {"train": {"target": np.ones(3, np.float32)}}
    assert labels.encode_targets(tables, None, "class_names") is None
    with pytest.raises(UsageError, match="class_names names classes, but y has num"):
        labels.encode_targets(tables, ("a", "b"), "class_names")


def test_columns_of_several_labels_are_matched_by_name():
    rows = np.array([[1, 0], [0, 1]], np.uint8)
    assert labels.renumber(rows, ["b", "c"], ["c", "a", "b"], "test").tolist() == [
        [0, 0, 1],
        [1, 0, 0],
    ]
    with pytest.raises(UsageError, match="'d' is not one of the classes"):
        labels.renumber(rows, ["b", "d"], ["c", "a", "b"], "test")
