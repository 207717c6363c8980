"""What arrays are read as, what is said about it, and which arrays are refused."""

import re

import keras
import numpy as np
import pandas
import pytest
import scipy.sparse
import tensorflow as tf

from pipeline.data.array_source import ArraySource
from pipeline.data.arrays import arrays_of, examples, match_fields, unchanged_fields
from pipeline.utils.errors import UsageError

N = 60
GENERATOR = np.random.default_rng(0)
CLASSES = np.arange(N) % 3
FLOATS = GENERATOR.normal(size=N)
BYTES = GENERATOR.integers(0, 256, (N, 8, 8), np.uint8)
IMAGES = BYTES[..., None]
FEATURES = GENERATOR.normal(size=(N, 4))
HOT = np.eye(3)[CLASSES]
ROWS = np.tile([[1, 0, 1], [0, 0, 0], [0, 1, 0]], (N // 3, 1))
MASKS = BYTES % 3


def normal(*shape):
    return GENERATOR.normal(size=(N, *shape))


# Each row of the table of x in docs/user_model.md.
# Name -> x, its kind if it is set, and field, shape and dtype of the input.
INPUTS = {
    "gray uint8": (BYTES, None, "image", (8, 8, 1), "uint8"),
    "gray uint16": (BYTES.astype("uint16"), None, "image", (8, 8, 1), "uint16"),
    "small gray uint8": (BYTES[:, :2, :3], None, "image", (2, 3, 1), "uint8"),
    "square floats": (normal(28, 28), None, "image", (28, 28, 1), "float32"),
    "other floats": (normal(9, 36), None, "features", (9, 36), "float32"),
    "gray booleans": (BYTES > 99, None, "image", (8, 8, 1), "float32"),
    "float16 images": (
        normal(9, 9, 3).astype("float16"),
        None,
        "image",
        (9, 9, 3),
        "float32",
    ),
    "many channels": (
        np.repeat(IMAGES, 7, axis=3),
        None,
        "image",
        (8, 8, 7),
        "uint8",
    ),
    "few channels over time": (normal(20, 3), None, "features", (20, 3), "float32"),
    "a long series": (normal(37, 9), None, "features", (37, 9), "float32"),
    "tokens and something": (
        BYTES.astype("int64"),
        None,
        "features",
        (8, 8),
        "int64",
    ),
    "vectors": (FEATURES, None, "features", (4,), "float32"),
    "vectors of integers": (BYTES[:, 0], None, "features", (8,), "int64"),
    "vectors of booleans": (BYTES[:, 0] > 99, None, "features", (8,), "float32"),
    "vectors of bfloat16": (
        tf.cast(FEATURES, tf.bfloat16),
        None,
        "features",
        (4,),
        "float32",
    ),
    "numbers": (FLOATS, None, "features", (1,), "float32"),
    "a list": (FEATURES.tolist(), None, "features", (4,), "float32"),
    "a tensor": (tf.constant(FEATURES), None, "features", (4,), "float32"),
    "uint8 as features": (BYTES, "features", "features", (8, 8), "int64"),
    "rank 4 as features": (normal(8, 8, 2), "features", "features", (8, 8, 2), None),
    "series as images": (normal(20, 3), "image", "image", (20, 3, 1), "float32"),
}


@pytest.mark.parametrize("case", INPUTS)
def test_x_becomes_images_or_features(case):
    x, kind, field, shape, dtype = INPUTS[case]
    columns = examples("train", x, CLASSES, input=kind).columns
    assert set(columns) == {field, "label"}
    assert columns[field].shape == (N, *shape)
    assert columns[field].dtype == (dtype or "float32")
    expected = np.asarray(x).astype(columns[field].dtype)
    np.testing.assert_array_equal(columns[field], expected.reshape(N, *shape))


# Each row of the table of y in docs/user_model.md.
# Name -> y, and its field beside features and beside images.
TARGETS = {
    "classes": (CLASSES, "label", "label"),
    "classes (n, 1)": (CLASSES[:, None], "label", "label"),
    "whole floats": (CLASSES.astype("float32"), "label", "label"),
    "uint8": (CLASSES.astype("uint8"), "label", "label"),
    "booleans": (CLASSES == 1, "label", "label"),
    "strings": (CLASSES.astype(str), "label", "label"),
    "bytes": (CLASSES.astype(bytes), "label", "label"),
    "string tensor": (tf.constant(CLASSES.astype(str)), "label", "label"),
    "objects": (CLASSES.astype(object), "label", "label"),
    "a column of pandas": (pandas.Series(CLASSES), "label", "label"),
    "nullable booleans": (pandas.array(CLASSES == 1), "label", "label"),
    "categories": (pandas.Series(CLASSES, dtype="category"), "label", "label"),
    "one-hot": (HOT, "label", "label"),
    "one-hot booleans": (HOT == 1, "label", "label"),
    "20 classes": (np.arange(N) % 20, "label", "label"),
    "21 numbers": (np.arange(N) % 21, "target", "label"),
    "from 1": (CLASSES + 1, "target", "label"),
    "-1 and 1": (CLASSES // 2 * 2 - 1, "target", "label"),
    "whole numbers": (CLASSES * 100.0, "target", "label"),
    "floats": (FLOATS, "target", "target"),
    "floats (n, 1)": (FLOATS[:, None], "target", "target"),
    "floats (n, 2)": (FEATURES[:, :2], "target", "target"),
    "integers (n, 2)": (BYTES[:, 0, :2], "target", "target"),
    "nullable floats": (pandas.Series(FLOATS, dtype="Float64"), "target", "target"),
    "a table of floats": (pandas.DataFrame(FEATURES), "target", "target"),
    "rows of 0 and 1": (ROWS, "labels", "labels"),
    "rows of booleans": (ROWS == 1, "labels", "labels"),
    "rows of floats": (ROWS.astype("float32"), "labels", "labels"),
    "table of 0 and 1": (pandas.DataFrame(ROWS), "labels", "labels"),
    "lists of names": ([["a", "b"], [], ["b"]] * 20, "labels", "labels"),
    "lists in pandas": (
        pandas.Series([["a", "b"], [], ["b"]] * 20),
        "labels",
        "labels",
    ),
    "sets of names": ([{"a", "b"}, set(), {"b"}] * 20, "labels", "labels"),
    "pairs of names": (np.array([["a", "b"]] * N), "labels", "labels"),
    "NA and None": (["NA", "None"] * 30, "label", "label"),
    "objects of numbers": (CLASSES.tolist(), "label", "label"),
    "lists of lists in a tensor": (
        tf.ragged.constant([["a", "b"], [], ["b"]] * 20),
        "labels",
        "labels",
    ),
    "names (n, 1)": (CLASSES.astype(str)[:, None], "label", "label"),
    "lists of one name": ([["a"], ["b"]] * 30, "label", "label"),
}


@pytest.mark.parametrize("x", [FEATURES, IMAGES], ids=["features", "images"])
@pytest.mark.parametrize("case", TARGETS)
def test_y_becomes_classes_labels_or_numbers(case, x):
    y, *fields = TARGETS[case]
    field = fields[0] if x is FEATURES else fields[1]
    columns = examples("train", x, y).columns
    assert field in columns and len(columns) == 2
    dtypes = {"target": "f", "label": "iU", "labels": "uO"}
    assert columns[field].dtype.kind in dtypes[field]
    assert columns[field].ndim == 1 or columns[field].shape[1] > 1


def test_numbers_labels_and_features_keep_their_values():
    columns = examples("train", FEATURES, ROWS == 1).columns
    np.testing.assert_array_equal(columns["labels"], ROWS)
    assert columns["labels"].dtype == np.uint8
    columns = examples("train", FEATURES, FEATURES[:, :2]).columns
    np.testing.assert_array_equal(columns["target"], FEATURES[:, :2].astype(np.float32))
    columns = examples("train", FEATURES, [["a", b"b"], [], ["b"]] * 20).columns
    assert columns["labels"][:3].tolist() == [("a", "b"), (), ("b",)]


@pytest.mark.parametrize(
    ("y", "values"),
    [
        (MASKS, MASKS),
        (MASKS[..., None], MASKS),
        (MASKS.astype("int64"), MASKS),
        (MASKS.astype("float32"), MASKS),
        (MASKS > 1, MASKS > 1),
    ],
)
def test_y_of_the_size_of_the_images_is_a_mask(y, values):
    for x in (IMAGES, BYTES, {"a": IMAGES, "b": FEATURES}):
        mask = examples("train", x, y).columns["mask"]
        assert mask.dtype == np.uint8
        np.testing.assert_array_equal(mask, values)


# Name -> x, y, target, field and dtype.
FORCED = {
    "classes of whole floats": (FEATURES, CLASSES * 100.0, "classes", "label", "int64"),
    "numbers of classes": (IMAGES, CLASSES, "number", "target", "float32"),
    "numbers of one-hot": (FEATURES, HOT, "number", "target", "float32"),
    "numbers of soft labels": (FEATURES, HOT * 0.9, "number", "target", "float32"),
    "numbers of booleans": (FEATURES, CLASSES == 1, "number", "target", "float32"),
    "numbers of objects": (FEATURES, FLOATS.astype(object), "number", "target", None),
    "labels of one-hot": (FEATURES, HOT, "labels", "labels", "uint8"),
    "labels of a column": (FEATURES, CLASSES[:, None] == 1, "labels", "labels", None),
    "labels of lists of one": (FEATURES, [["a"], ["b"]] * 30, "labels", "labels", "O"),
    "labels of empty lists": (FEATURES, [[]] * N, "labels", "labels", "O"),
    "a mask": (BYTES, MASKS, "mask", "mask", "uint8"),
    "another target": (FEATURES, CLASSES, "mine.py:ordinal", "label", "int64"),
}


@pytest.mark.parametrize("case", FORCED)
def test_the_target_can_be_set(case):
    x, y, target, field, dtype = FORCED[case]
    result = examples("train", x, y, target=target)
    assert set(result.columns) - {"features", "image"} == {field}
    assert dtype is None or result.columns[field].dtype == dtype
    assert not result.notes or target == "mine.py:ordinal"


NOTES = {
    "square": (normal(9, 9), CLASSES > 1, 'gray images, .*square.*"input": "features"'),
    "series": (normal(20, 3), CLASSES > 1, 'as features .*"input": "image"'),
    "integers": (BYTES.astype(int), CLASSES > 1, r'as features.*x.astype\("uint8"\)'),
    "classes": (FEATURES, CLASSES, 'from 0 to 2, .* as classes.*"number"'),
    "numbers": (FEATURES, CLASSES + 25, 'from 25 to 27, .* as numbers.*"classes"'),
    "rows": (FEATURES, ROWS, r"example 0 has 2 of 3\), .* as several labels"),
    "pairs": (FEATURES, BYTES[:, 0, :2], "rows of 2 whole numbers, .* as numbers"),
    "NA": (FEATURES, ["a", "NA"] * 30, "the class 'NA'; if it is no label, remove"),
    "a name": (
        {"left": normal(9, 9)},
        CLASSES > 1,
        r"x\['left'\] of shape \(60, 9, 9\) is read as gray images",
    ),
}


@pytest.mark.parametrize("case", NOTES)
def test_what_was_assumed_is_noted_in_one_line(case):
    x, y, text = NOTES[case]
    (note,) = examples("train", x, y).notes
    assert re.search(text, note) and "\n" not in note


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (BYTES, CLASSES),
        (IMAGES, HOT),
        (FEATURES, FLOATS),
        (FEATURES, CLASSES.astype(str)),
        (FEATURES, HOT),
        (normal(9, 9, 3), MASKS[:, :1, :1].repeat(9, 1).repeat(9, 2)),
        (IMAGES, CLASSES / 2),
    ],
)
def test_what_is_obvious_is_not_noted(x, y):
    assert not examples("train", x, y).notes


def test_whole_numbers_are_classes_if_the_user_names_them():
    result = examples("train", FEATURES, CLASSES * 5, has_class_names=True)
    assert result.columns["label"].tolist() == (CLASSES * 5).tolist()
    assert not result.notes
    result = examples("train", FEATURES, FLOATS, has_class_names=True)
    assert "target" in result.columns


def test_a_dictionary_has_several_inputs():
    x = {"left": BYTES, "table": FEATURES, "tokens": BYTES[:, 0]}
    result = examples("train", x, CLASSES.astype(str))
    assert set(result.columns) == {
        "left/image",
        "table/features",
        "tokens/features",
        "label",
    }
    assert result.columns["tokens/features"].dtype == np.int64
    assert result.kinds == {
        "input": {"left/": "image", "table/": "features", "tokens/": "features"},
        "target": "classes",
    }
    source = ArraySource({"a/image": np.zeros((2, 3, 16, 12))})
    assert "3 channels come first" in source.info.notes[0]


def test_tables_of_numbers_are_features_with_names():
    table = pandas.DataFrame({"a": [1, 2], "b": [0.5, 1], "c": [True, False]})
    result = examples("train", table, ["x", "y"])
    assert result.feature_names == ("a", "b", "c")
    np.testing.assert_array_equal(result.columns["features"], [[1, 0.5, 1], [2, 1, 0]])
    whole = pandas.DataFrame({"a": pandas.array([1, 2], "Int64"), 5: [3, 4]})
    result = examples("train", whole, ["x", "y"])
    assert result.columns["features"].dtype == np.int64
    assert result.feature_names == ("a", "5")
    assert examples("train", pandas.DataFrame(FEATURES), FLOATS).feature_names is None
    column = examples("train", pandas.Series([1.5, 2], name="a"), ["x", "y"])
    assert column.feature_names == ("a",)


def test_sample_weights_are_float32():
    weight = examples("train", FEATURES, FLOATS, CLASSES).columns["sample_weight"]
    assert weight.dtype == np.float32
    np.testing.assert_array_equal(weight, CLASSES)


def with_value(values, position, value):
    copy = np.array(values, float)
    copy[position] = value
    return copy


def table(**columns):
    return pandas.DataFrame({"a": [1.0, 2], **columns})


FEW = np.array([0, 1])
BAD_INPUTS = {
    "text among numbers": (
        [["a", "b"], ["c", "d"]],
        r"x must hold numbers; got <U1 \('a'\)",
    ),
    "a number among texts": (["a", 3], "x holds texts, but example 1 is int"),
    "objects": (
        np.array([{}, {}]),
        r"numbers; got object \('\{\}'\); .*numpy.stack\(x\)",
    ),
    "complex": (np.ones((2, 3)) * 1j, "must hold numbers; got complex128"),
    "dates": (np.array(["2020-01-01"] * 2, "M8[D]"), "must hold numbers; got datetime"),
    "ragged": (tf.ragged.constant([[1], [1, 2]]), r"RaggedTensor; .*x.to_tensor\(\)"),
    "sparse": (tf.sparse.from_dense(np.eye(2)), r"pass tf.sparse.to_dense\(x\)"),
    "SciPy": (
        scipy.sparse.csr_array(np.eye(2)),
        r"x is a csr_array; pass x.toarray\(\)",
    ),
    "lists": (
        [[1, 2], [3]],
        r"the parts of x have different shapes; pad .* dictionary \{name: array\}",
    ),
    "deep lists": ([[[1], [2, 3]], [[1], [2, 3]]], "parts of x have different sh"),
    "nothing": (np.ones((0, 3)), r"of shape \(0, 3\); .*none of length 0"),
    "no features": (np.ones((2, 0)), r"shape \(2, 0\); features are"),
    "rank 5": (np.ones((2, 3, 3, 3, 3)), "features are .* with 1 to 3 axes"),
    "another length": (np.ones((3, 3)), r"be equal.*\(3, 3\), y \(2,\)"),
    "a list of inputs": (
        [np.ones((2, 5)), np.ones((2, 5)), np.ones((2, 5))],
        r"equal.*pass several inputs as a dictionary",
    ),
    "NaN": (
        with_value(np.ones((2, 3)), (1, 2), np.nan),
        r"x\[1, 2\] is nan, but .*finite",
    ),
    "infinity in a series": (
        with_value(np.ones((2, 9, 3)), (1, 4, 2), -np.inf),
        r"x\[1, 4, 2\] is -inf",
    ),
    "large": (
        with_value(np.ones((2, 3)), (0, 1), 1e300),
        r"x\[0, 1\] is 1e\+300, .*as float32; scale",
    ),
    "uint64": (
        np.full((2, 3), 2**64 - 1, np.uint64),
        r"x is uint64 .* integers below 2\*\*63",
    ),
    "int64 images": (
        np.ones((2, 8, 8, 3), int),
        r"must be uint8, .*got int64 .*x.astype\('uint8'\)",
    ),
    "NaN in images": (np.full((2, 8, 8, 3), np.nan), r"x\[0, 0, 0, 0\] is nan"),
    "NaN in a table": (table(b=[1, None]), r"x\[1, 'b'\] is nan"),
    "NA in a table": (
        table(b=pandas.array([1, None], "Int64")),
        r"x\[1, 'b'\] is nan",
    ),
    "text in a table": (
        table(b=["x", "y"]),
        "'b' is .*pandas.get_dummies",
    ),
    "dates in a table": (
        table(b=pandas.to_datetime(["2020", "2021"])),
        "'b' is datetime64",
    ),
    "columns twice": (
        pandas.DataFrame(np.ones((2, 2)), columns=["a", "a"]),
        "with different names; 'a' .* rename",
    ),
    "no inputs": ({}, r"x must be a dictionary \{name: array\}"),
    "a number as a name": ({1: np.ones((2, 3))}, "got the name 1"),
    "an empty name": ({"": np.ones((2, 3))}, "got the name ''"),
    "a slash": ({"a/b": np.ones((2, 3))}, "got the name 'a/b'"),
    "different lengths": (
        {"a": np.ones((2, 3)), "b": np.ones((3, 3))},
        r"must be equal .* a/features \(2, 3\), b/features \(3, 3\), y \(2,\)",
    ),
    "NaN by name": (
        {"a": np.full((2, 3), np.nan)},
        r"x\['a'\]\[0, 0\] is nan",
    ),
}


def message_of(*arguments, **options):
    """The one line by which arrays are refused."""
    with pytest.raises(UsageError) as caught:
        examples("train", *arguments, **options)
    text = str(caught.value)
    assert text.startswith("train: ") and "\n" not in text
    return text


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_other_inputs_are_refused_in_one_line(case):
    x, text = BAD_INPUTS[case]
    assert re.search(text, message_of(x, FEW))


def test_an_input_that_is_set_must_fit():
    assert "of shape (n, height, width[, channels]); got" in message_of(
        FEATURES, CLASSES, input="image"
    )
    assert "got int64 of shape (60, 8, 8)" in message_of(
        BYTES.astype(int), CLASSES, input="image"
    )
    assert "with 1 to 3 axes" in message_of(
        np.ones((N, 2, 2, 2, 2)), CLASSES, input="features"
    )


# Name -> x, y, target, message.
BAD_TARGETS = {
    "rank 3": (FEATURES, normal(3, 4), None, "y is float64 .*pass numbers"),
    "rank 5": (IMAGES, np.ones((N, 2, 2, 2, 2)), None, "pass numbers to predict"),
    "no columns": (
        FEATURES,
        np.ones((N, 0)),
        None,
        r"shape \(60, 0\); pass",
    ),
    "a dictionary": (FEATURES, {"a": CLASSES}, None, r"y is a dictionary \(a\)"),
    "ragged": (FEATURES, tf.ragged.constant([[1], [1, 2]] * 30), None, "parts of y"),
    "sparse": (FEATURES, tf.sparse.from_dense(HOT), None, "SparseTensor"),
    "complex": (
        FEATURES,
        CLASSES * 1j,
        None,
        "y is complex128",
    ),
    "ragged lists": (
        FEATURES,
        [[1], [1, 2]] * 30,
        None,
        "parts of y have different shapes",
    ),
    "soft": (
        FEATURES,
        np.full((N, 4), 0.25),
        None,
        r'soft labels, .*task=\{"target": "number"\}',
    ),
    "soft for images": (
        IMAGES,
        np.full((N, 4), 0.25),
        None,
        r"of soft labels, y.argmax\(axis=1\)",
    ),
    "NaN for images": (
        IMAGES,
        with_value(CLASSES, 4, np.nan),
        None,
        "example 4 has no",
    ),
    "NaN in numbers": (
        FEATURES,
        with_value(FLOATS, 4, np.nan),
        None,
        r"y\[4\] is nan, .*or remove example 4",
    ),
    "NaN in rows": (
        FEATURES,
        with_value(FEATURES, (4, 1), np.nan),
        None,
        r"y\[4, 1\] is nan",
    ),
    "NaN in classes": (
        FEATURES,
        with_value(CLASSES, 4, np.nan),
        None,
        r"y\[4\] is nan",
    ),
    "an empty string": (
        FEATURES,
        ["a", ""] * 30,
        None,
        r"example 1 has no label \(''\)",
    ),
    "None": (FEATURES, ["a", None] * 30, None, r"example 1 has no label \(None\)"),
    "mixed objects": (
        FEATURES,
        np.array(["a", 3] * 30, object),
        None,
        "all strings or all numbers; example 1 has 3",
    ),
    "objects": (FEATURES, np.array([{}] * N), None, r"example 0 has \{\}"),
    "a list with None": (
        FEATURES,
        [["a", "b"], None] * 30,
        None,
        r"\[\] without labels.*example 1 has None",
    ),
    "a list with a number": (FEATURES, [["a", 3], []] * 30, None, r"0 has \['a', 3\]"),
    "a list with nothing": (FEATURES, [["a", ""], []] * 30, None, "0 has .'a', ''."),
    "another size": (
        IMAGES,
        MASKS[:, :6, :6],
        None,
        r"images \(8x8\); got .* \(60, 6, 6\); resize",
    ),
    "masks for features": (FEATURES, MASKS, "mask", "x has none"),
    "rank 2 masks": (
        IMAGES,
        HOT,
        "mask",
        r"of shape \(n, height, width\) .* got float64",
    ),
    "one-hot masks": (
        IMAGES,
        np.eye(3)[MASKS],
        None,
        r"one-hot masks, pass y.argmax\(axis=-1\)",
    ),
    "257 classes": (
        IMAGES,
        MASKS.astype(int) * 128,
        None,
        "has 256; masks must have a class from 0 to 255",
    ),
    "negative masks": (
        IMAGES,
        MASKS.astype(int) - 1,
        None,
        "has -1; masks must",
    ),
    "fractions in masks": (IMAGES, MASKS / 4, None, "has 0.[25]5?; masks must have"),
    "NaN in masks": (IMAGES, MASKS * np.nan, None, "has nan; masks must have"),
    "text masks": (IMAGES, MASKS.astype(str), None, "masks must be integers"),
    "fractions as classes": (
        FEATURES,
        CLASSES / 2,
        "classes",
        r'example 1 has 0.5. .*task=\{"target": "number"\}',
    ),
    "rows as classes": (
        FEATURES,
        ROWS,
        "classes",
        r'example 0 has 2 classes .*task=\{"target": "labels"\}',
    ),
    "lists as classes": (
        FEATURES,
        [["a", "b"], []] * 30,
        "classes",
        r'task=\{"target": "labels"\}; example 0 has',
    ),
    "lists as numbers": (FEATURES, [["a", "b"], []] * 30, "number", "several labels"),
    "strings as numbers": (
        FEATURES,
        CLASSES.astype(str),
        "number",
        'y is <U21 .*task={"target": "classes"}',
    ),
    "rank 3 as numbers": (
        FEATURES,
        normal(3, 4),
        "number",
        "pass numbers to predict .n,",
    ),
    "NaN as numbers": (FEATURES, FLOATS * np.nan, "number", r"y\[0\] is nan"),
    "classes as labels": (
        FEATURES,
        CLASSES,
        "labels",
        "must be rows of 0 and 1 .* such as 2",
    ),
    "strings as labels": (FEATURES, CLASSES.astype(str), "labels", "got <U21 of shape"),
}


@pytest.mark.parametrize("case", BAD_TARGETS)
def test_other_targets_are_refused_in_one_line(case):
    x, y, target, text = BAD_TARGETS[case]
    assert re.search(text, message_of(x, y, target=target))


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        (-(FLOATS**2), "must be a finite number of at least 0"),
        (FLOATS[1:] ** 2, r"of shape \(60,\)"),
        (FLOATS * np.nan, "must be a finite number"),
        (CLASSES.astype(str), "must be a finite number.*got <U21"),
    ],
)
def test_other_weights_are_refused_in_one_line(weight, text):
    assert re.search(text, message_of(FEATURES, CLASSES, weight))


@pytest.mark.parametrize(
    "texts",
    [
        ["a great film", "caf\u00e9"],
        [b"a great film", b"caf\xc3\xa9"],
        np.array(["a great film", "caf\u00e9"]),
        np.array([["a great film"], ["caf\u00e9"]], object),
        tf.constant(["a great film", "caf\u00e9"]),
        pandas.Series(["a great film", "caf\u00e9"]),
    ],
    ids=["list", "bytes", "array", "column", "tensor", "pandas"],
)
def test_strings_are_texts(texts):
    columns = examples("train", texts, ["good", "bad"]).columns
    assert columns["text"].tolist() == [b"a great film", b"caf\xc3\xa9"]
    columns = examples("train", {"title": texts}, ["good", "bad"]).columns
    assert columns["title/text"].tolist() == [b"a great film", b"caf\xc3\xa9"]


def slices(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays)


# Name -> x, y and the field of y.
EXAMPLES = {
    "features and classes": (FEATURES, CLASSES, "label"),
    "features and one-hot classes": (FEATURES, HOT, "label"),
    "features and several labels": (FEATURES, ROWS, "labels"),
    "features and a number": (FEATURES, FLOATS, "target"),
    "features and as many numbers": (FEATURES, FEATURES, "target"),
    "a feature and a number": (FEATURES[:, 0], FLOATS, "target"),
    "tokens and classes": (BYTES[:, 0].astype(int), CLASSES, "label"),
    "time series and numbers": (normal(9, 3), FEATURES, "target"),
    "texts and strings": (CLASSES.astype(str), CLASSES.astype(str), "label"),
    "images and one-hot classes": (IMAGES, HOT, "label"),
    "images and names": (IMAGES, CLASSES.astype(str), "label"),
    "images and numbers": (IMAGES, FEATURES, "target"),
    "images and masks": (IMAGES, MASKS, "mask"),
    "images and masks with a channel": (IMAGES, MASKS[..., None], "mask"),
    "gray images and masks": (BYTES, MASKS, "mask"),
    "gray images and classes": (BYTES, CLASSES, "label"),
    "gray images and as many classes": (BYTES, np.eye(8)[CLASSES], "label"),
    "two inputs": ({"left": IMAGES, "table": FEATURES}, HOT, "label"),
}
FORMS = {
    "batches": lambda data: data.batch(7),
    "batches of one": lambda data: data.batch(1),
    "equal batches": lambda data: data.batch(20, drop_remainder=True),
}
# Equal batches that may also be two vectors, or an image and its mask.
AMBIGUOUS = {
    "a feature and a number",
    "features and as many numbers",
    "gray images and as many classes",
}


def values_of(data):
    """The fields of data, with tuples in place of arrays."""
    columns = examples("train", *arrays_of(data, "train")).columns
    return {field: values.tolist() for field, values in columns.items()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", EXAMPLES)
def test_batches_of_a_dataset_are_read_as_its_arrays(case, form):
    x, y, field = EXAMPLES[case]
    data = FORMS[form](slices(x, y))
    if form == "equal batches" and case in AMBIGUOUS:
        with pytest.raises(UsageError, match=r"call .batch\(32\), without drop_rem"):
            values_of(data)
        return
    values = values_of(data)
    assert field in values and values == values_of((x, y))


SCALARS = [case for case, (_, y, _) in EXAMPLES.items() if y.ndim == 1]


@pytest.mark.parametrize("case", SCALARS)
def test_examples_of_which_a_part_has_no_axis_are_batched(case):
    x, y, field = EXAMPLES[case]
    values = values_of(slices(x, y))
    assert field in values and values == values_of((x, y))
    weights = np.ones(N, np.float32)
    assert values_of(slices(x, y, weights)) == values_of((x, y, weights))


def test_weights_without_an_axis_tell_single_examples():
    weights = np.ones(N, np.float32)
    data = slices(IMAGES, HOT, weights)
    assert values_of(data) == values_of((IMAGES, HOT, weights))
    assert values_of(data.batch(20, drop_remainder=True)) == values_of(data)


def of_unknown_sizes(y):
    signature = (
        tf.TensorSpec([None, None, None], tf.uint8),
        tf.TensorSpec([None] * y[0].ndim, y.dtype),
    )
    return tf.data.Dataset.from_generator(
        lambda: zip(BYTES[:10].reshape(2, 5, 8, 8), y, strict=True),
        output_signature=signature,
    )


def test_batches_of_unknown_sizes_are_read_by_their_lengths():
    values = values_of(of_unknown_sizes(CLASSES[:10].reshape(2, 5)))
    assert values == values_of((BYTES[:10], CLASSES[:10]))


# Single examples that are not told by an axis: name -> data.
UNBATCHED = {
    "image and one-hot": slices(IMAGES, HOT),
    "image with four channels and one-hot": slices(IMAGES.repeat(4, axis=3), HOT),
    "gray image and one-hot": slices(BYTES, HOT),
    "image and mask": slices(IMAGES, MASKS),
    "image and mask with a channel": slices(IMAGES, MASKS[..., None]),
    "gray image and mask": slices(BYTES, MASKS),
    "vector and one-hot": slices(FEATURES, HOT),
    "vector and as many classes": slices(FEATURES, np.eye(4)[CLASSES]),
    "vector and a number": slices(FEATURES, FLOATS[:, None]),
    "series and several labels": slices(normal(9, 4), ROWS),
    "two inputs": slices({"a": IMAGES, "b": FEATURES}, HOT),
    "unknown sizes": of_unknown_sizes(HOT[:2]),
}


@pytest.mark.parametrize("case", UNBATCHED)
def test_other_single_examples_are_refused(case):
    with pytest.raises(UsageError, match=r"call .batch\(32\)") as caught:
        values_of(UNBATCHED[case])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "keys", [("features", "target"), ("x", "y"), ("Text", "Label")]
)
def test_a_dictionary_has_an_input_and_a_target_by_name(keys):
    weights = np.ones(N, np.float32)
    expected = values_of((FEATURES, FLOATS, weights))
    row = dict(zip((*keys, "sample_weight"), (FEATURES, FLOATS, weights), strict=True))
    assert values_of(row) == expected
    data = tf.data.Dataset.from_tensor_slices(row)
    assert values_of(data) == expected
    assert values_of(data.batch(7)) == expected


class BatchList(keras.utils.PyDataset):
    """A PyDataset of a list of batches."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, number):
        return self.batches[number]


def test_a_py_dataset_is_read_as_its_arrays():
    for x in (IMAGES, {"left": IMAGES, "table": FEATURES}):
        parts = [(x, CLASSES, FLOATS**2)]
        assert values_of(BatchList(parts)) == values_of(parts[0])
    images = BatchList([(IMAGES[:9], HOT[:9]), (IMAGES[9:], HOT[9:])])
    assert values_of(images) == values_of((IMAGES, HOT))


def test_lists_of_labels_may_differ_in_length_between_batches():
    batches = [(FEATURES[:2], [["b"], ["a"]]), (FEATURES[2:4], [[], ["c", "a"]])]
    assert values_of(BatchList(batches))["labels"] == [("b",), ("a",), (), ("c", "a")]


# Name -> data, and the message.
BAD_DATA = {
    "no y": (slices(BYTES).map(lambda x: x).batch(8), "Tensor; pass"),
    "no end": (slices(FEATURES, FLOATS).repeat(), "never ends; remove repeat()"),
    "no length": (keras.utils.PyDataset(), "the PyDataset never ends.*define __len__"),
    "no batches": (BatchList([]), "train is empty"),
    "another name": (
        {"picture": BYTES, "label": HOT},
        "exactly one field .* named image or.*pict",
    ),
    "two targets": ({"x": BYTES, "y": HOT, "mask": MASKS}, "must be named label or"),
    "two inputs": (
        tf.data.Dataset.from_tensor_slices({"x": BYTES, "image": BYTES, "y": CLASSES}),
        "one field or column must be named image or features",
    ),
    "inputs in a tuple": (
        slices((FEATURES, FEATURES), CLASSES).batch(7),
        "pass several inputs as a dictionary",
    ),
    "ragged": (
        slices(tf.ragged.constant([[1.0], [1.0, 2.0]]), [0, 1]),
        r"x is a RaggedTensor; pad it with x.to_tensor\(\)",
    ),
    "sparse": (
        slices(tf.sparse.from_dense(np.eye(2)), [0, 1]),
        r"SparseTensor; pass tf.sparse.to_dense\(x\)",
    ),
    "a dictionary of targets": (slices(FLOATS, {"a": CLASSES}), "y is a dictionary"),
    "different sizes": (
        BatchList([(FEATURES[:2], [0, 1]), (FEATURES[:2, :3], [0, 1])]),
        "x differs between batches",
    ),
    "an error in map": (
        slices(FEATURES, FLOATS).map(lambda x, y: (tf.io.decode_raw("a", tf.int32), y)),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_data_without_what_is_needed_are_refused_in_one_line(case):
    data, message = BAD_DATA[case]
    with pytest.raises(UsageError, match=message) as caught:
        values_of(data)
    assert "\n" not in str(caught.value)


def test_data_larger_than_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("", (), {"available": 9}))
    with pytest.raises(UsageError, match="train does not fit into memory"):
        arrays_of(slices(FEATURES, FLOATS), "train")


def test_unchanged_arrays_keep_their_shapes_and_integers():
    x = {"a": BYTES, "b": normal(2, 3, 4, 5), "c": [["é", "bc"]] * N}
    y = {"d": CLASSES.astype("int8"), "e": FLOATS * np.nan, "f": CLASSES > 1}
    fields = unchanged_fields("train", x, y, np.arange(N))
    assert {field: (str(v.dtype), v.shape[1:]) for field, v in fields.items()} == {
        "x/a": ("uint8", (8, 8)),
        "x/b": ("float32", (2, 3, 4, 5)),
        "x/c/text": ("uint8", (2, 2)),
        "y/d": ("int8", ()),
        "y/e": ("float32", ()),
        "y/f": ("float32", ()),
        "sample_weight": ("float32", ()),
    }
    assert fields["x/c/text"][0].tobytes() == b"\xc3\xa9bc"
    assert unchanged_fields("train", BYTES, FLOATS).keys() == {"x", "y"}


def test_unchanged_splits_get_the_same_types_and_lengths_of_texts():
    tables = {
        "train": unchanged_fields("train", ["a", "bcd"], [1, 2]),
        "test": unchanged_fields("test", ["ef"], [0.5], [3]),
    }
    match_fields(tables)
    assert tables["test"]["x/text"].tolist() == [[*b"ef\0"]]
    assert tables["train"]["y"].dtype == np.float32
    assert tables["train"]["sample_weight"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("x", "y", "weight", "text"),
    [
        (FEATURES, CLASSES.astype(str), None, "y must hold numbers; .*StringLookup"),
        (FEATURES * np.nan, FLOATS, None, r"x\[0, 0\] is nan"),
        (FEATURES, FLOATS * 1e300, None, r"y\[0\] is .*e\+2?3?"),
        (FEATURES, FLOATS[1:], None, r"equal .* x \(60, 4\), y \(59,\)"),
        (FEATURES[:0], FLOATS[:0], None, "at least 1"),
        (FEATURES, {}, None, "y must be a dictionary"),
        (FEATURES, {"a": FLOATS}, {"a": FLOATS}, "sample_weight .* loss_weights"),
    ],
)
def test_other_unchanged_arrays_are_refused_in_one_line(x, y, weight, text):
    with pytest.raises(UsageError, match=text) as caught:
        unchanged_fields("train", x, y, weight)
    assert "\n" not in str(caught.value)
