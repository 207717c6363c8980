"""What arrays are read as, what is said about it, and which arrays are refused."""

import re

import numpy as np
import pandas
import pytest
import scipy.sparse
import tensorflow as tf

from pipeline.data.array_source import ArraySource, examples
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


# Name -> x, its kind if it is set, and field, shape and dtype of the input.
INPUTS = {
    "gray uint8": (BYTES, None, "image", (8, 8, 1), "uint8"),
    "gray uint16": (BYTES.astype("uint16"), None, "image", (8, 8, 1), "uint16"),
    "small gray uint8": (BYTES[:, :2, :3], None, "image", (2, 3, 1), "uint8"),
    "gray floats": (normal(9, 36), None, "image", (9, 36, 1), "float32"),
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
    "gray": (normal(9, 9), CLASSES > 1, 'gray images of 9 x 9 .*"input": "features"'),
    "series": (normal(20, 3), CLASSES > 1, '20 steps of 3 .*"input": "image"'),
    "integers": (BYTES.astype(int), CLASSES > 1, r"holds int64; .*x.astype\('uint8'\)"),
    "classes": (FEATURES, CLASSES, 'numbers 0 to 2, .* as classes.*"number"'),
    "numbers": (FEATURES, CLASSES + 25, 'from 25 to 27, .* as numbers.*"classes"'),
    "fractions": (IMAGES, CLASSES / 2, "not whole, such as 0.5 in example 1"),
    "rows": (FEATURES, ROWS, r"example 0 has 2 of 3\), .* as several labels"),
    "pairs": (FEATURES, BYTES[:, 0, :2], "rows of 2 whole numbers, .* as numbers"),
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
        (BYTES[:, :2].astype(int), CLASSES == 1),
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
    assert result.kinds() == {
        "input": {"left": "image", "table": "features", "tokens": "features"},
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


def test_memory_maps_of_long_rows_stay_on_disk(tmp_path):
    np.save(tmp_path / "x.npy", normal(4, 3).astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    columns = examples("train", mapped, CLASSES).columns
    assert isinstance(columns["features"], np.memmap)
    source = ArraySource(columns)
    read = source.reader("train")(tf.constant(7))["features"]
    np.testing.assert_array_equal(read, mapped[7])


@pytest.mark.parametrize("is_mapped", [False, True])
def test_examples_are_the_same_alone_and_in_a_dataset(tmp_path, is_mapped):
    np.save(tmp_path / "x.npy", normal(4, 3).astype(np.float32))
    x = np.load(tmp_path / "x.npy", mmap_mode="r" if is_mapped else None)
    source = ArraySource({"features": x, "name": np.array(["é"] * N)})
    alone = source.reader("train")(tf.constant(7))
    together = next(iter(source.examples("train").skip(7)))
    assert set(alone) == set(together) == {"id", "features", "name"}
    for name, value in alone.items():
        assert value.dtype == together[name].dtype
        np.testing.assert_array_equal(value, together[name])


def test_parts_of_memory_maps_are_read_as_they_are(tmp_path):
    np.save(tmp_path / "x.npy", normal(9, 9, 3).astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for part in (mapped[20:40], mapped[:20], mapped[::-1], mapped.astype(float)):
        columns = examples("train", part, np.arange(len(part))).columns
        read = ArraySource(columns).reader("train")(tf.constant(7))["image"]
        np.testing.assert_array_equal(read, part[7])


def with_value(values, position, value):
    copy = np.array(values, float)
    copy[position] = value
    return copy


def table(**columns):
    return pandas.DataFrame({"a": [1.0, 2], **columns})


FEW = np.array([0, 1])
BAD_INPUTS = {
    "text among numbers": ([["a", "b"], ["c", "d"]], r"x holds text \('a'\), and text"),
    "a number among texts": (["a", 3], "x holds texts, but example 1 is int"),
    "objects": (np.array([{}, {}]), r"x holds objects \(dict\); .*numpy.stack\(x\)"),
    "complex": (np.ones((2, 3)) * 1j, r"x holds complex numbers; .*\[x.real, x.imag\]"),
    "dates": (np.array(["2020-01-01"] * 2, "M8[D]"), "must hold numbers; got datetime"),
    "ragged": (tf.ragged.constant([[1], [1, 2]]), r"RaggedTensor; .*x.to_tensor\(\)"),
    "sparse": (tf.sparse.from_dense(np.eye(2)), r"give tf.sparse.to_dense\(x\)"),
    "SciPy": (scipy.sparse.csr_array(np.eye(2)), r"sparse matrix; give x.toarray\(\)"),
    "lists": (
        [[1, 2], [3]],
        r"x must be one array; got 2 of different shapes, such as \(1,\) and \(2,\)",
    ),
    "deep lists": ([[[1], [2, 3]], [[1], [2, 3]]], "examples of x have different sh"),
    "nothing": (np.ones((0, 3)), "lengths of x and y must be equal and at least 1"),
    "no features": (np.ones((2, 0)), r"x has shape \(2, 0\); images have shape"),
    "rank 5": (np.ones((2, 3, 3, 3, 3)), r"images must have shape|x has shape"),
    "another length": (np.ones((3, 3)), r"be equal.*shapes \(3, 3\) and \(2,\)"),
    "a list of inputs": (
        [np.ones((2, 5)), np.ones((2, 5)), np.ones((2, 5))],
        r"equal.*give several inputs as a dictionary",
    ),
    "NaN": (
        with_value(np.ones((2, 3)), (1, 2), np.nan),
        "x has nan in example 1, column 2",
    ),
    "infinity in a series": (
        with_value(np.ones((2, 9, 3)), (1, 4, 2), -np.inf),
        r"x has -inf in example 1, position \(4, 2\)",
    ),
    "large": (
        with_value(np.ones((2, 3)), (0, 1), 1e300),
        r"x has 1e\+300 in example 0, column 1, which is too large for float32",
    ),
    "uint64": (np.full((2, 3), 2**64 - 1, np.uint64), r"x has integers above 2\*\*63"),
    "int64 images": (
        np.ones((2, 8, 8, 3), int),
        r"must be uint8, .*got int64 .*x.astype\('uint8'\)",
    ),
    "NaN in images": (np.full((2, 8, 8, 3), np.nan), "images must be finite"),
    "NaN in a table": (table(b=[1, None]), "x has nan in example 1, column 'b'"),
    "NA in a table": (
        table(b=pandas.array([1, None], "Int64")),
        "x has nan in example 1, column 'b'",
    ),
    "text in a table": (
        table(b=["x", "y"]),
        "the column 'b' of x has the dtype .*dummies",
    ),
    "dates in a table": (table(b=pandas.to_datetime(["2020", "2021"])), "'b' of x has"),
    "columns twice": (
        pandas.DataFrame(np.ones((2, 2)), columns=["a", "a"]),
        "x has two columns named 'a'",
    ),
    "no inputs": ({}, "x is an empty dictionary"),
    "a number as a name": ({1: np.ones((2, 3))}, "an input named 1; rename"),
    "an empty name": ({"": np.ones((2, 3))}, "an input named ''; rename"),
    "a slash": ({"a/b": np.ones((2, 3))}, "an input named 'a/b'; rename"),
    "different lengths": (
        {"a": np.ones((2, 3)), "b": np.ones((3, 3))},
        r"the lengths of x\['b'\] and y must be equal .* \(3, 3\) and \(2,\)",
    ),
    "NaN by name": (
        {"a": np.full((2, 3), np.nan)},
        r"x\['a'\] has nan in example 0, column 0",
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
    assert "images must have shape (n, height" in message_of(
        FEATURES, CLASSES, input="image"
    )
    assert "got int64 of shape (60, 8, 8)" in message_of(
        BYTES.astype(int), CLASSES, input="image"
    )
    assert "features 1 to 3 axes" in message_of(
        np.ones((N, 2, 2, 2, 2)), CLASSES, input="features"
    )


# Name -> x, y, target, message.
BAD_TARGETS = {
    "rank 3": (FEATURES, normal(3, 4), None, "which no target takes; give classes"),
    "rank 5": (IMAGES, np.ones((N, 2, 2, 2, 2)), None, "which no target takes"),
    "no columns": (
        FEATURES,
        np.ones((N, 0)),
        None,
        r"shape \(60, 0\), which no target",
    ),
    "a dictionary": (FEATURES, {"a": CLASSES}, None, r"y is a dictionary \(a\)"),
    "ragged": (FEATURES, tf.ragged.constant([["a"], []]), None, r"as y.to_list\(\)"),
    "sparse": (FEATURES, tf.sparse.from_dense(HOT), None, "tf.SparseTensor"),
    "complex": (
        FEATURES,
        CLASSES * 1j,
        None,
        "y must hold numbers or strings; got com",
    ),
    "ragged lists": (FEATURES, [[1], [1, 2]] * 30, None, "y must be one array"),
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
        "example 0 has soft labels",
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
        "y has nan in example 4, which is not a number to learn from",
    ),
    "NaN in rows": (
        FEATURES,
        with_value(FEATURES, (4, 1), np.nan),
        None,
        "y has nan in example 4, column 1",
    ),
    "NaN in classes": (
        FEATURES,
        with_value(CLASSES, 4, np.nan),
        None,
        "y has nan in example 4",
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
        "all strings or all numbers; example 0 has 'a', example 1 has 3",
    ),
    "objects": (FEATURES, np.array([{}] * N), None, "example 0 has dict"),
    "a list with None": (
        FEATURES,
        [["a", "b"], None] * 30,
        None,
        r"example 1 has None; an example without labels has \[\]",
    ),
    "a list with a number": (FEATURES, [["a", 3], []] * 30, None, "0 has the label 3"),
    "a list with nothing": (FEATURES, [["a", ""], []] * 30, None, "0 has the label ''"),
    "another size": (IMAGES, MASKS[:, :6, :6], None, "6x6 pixels for an image of 8x8"),
    "masks for features": (FEATURES, MASKS, "mask", "masks need images"),
    "rank 2 masks": (
        IMAGES,
        HOT,
        "mask",
        r"of shape \(n, height, width\); got float64",
    ),
    "one-hot masks": (
        IMAGES,
        np.eye(3)[MASKS],
        None,
        r"one class for each pixel.*y.argmax\(axis=-1\)",
    ),
    "257 classes": (
        IMAGES,
        MASKS.astype(int) * 128,
        None,
        "the class 256; at most 256",
    ),
    "negative masks": (
        IMAGES,
        MASKS.astype(int) - 1,
        None,
        "has -1; number the classes",
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
        "example 0 has 2 labels, but the target is 'classes'",
    ),
    "lists as numbers": (FEATURES, [["a", "b"], []] * 30, "number", "'number'"),
    "strings as numbers": (
        FEATURES,
        CLASSES.astype(str),
        "number",
        "y must be numbers to predict; got <U21; convert it",
    ),
    "rank 3 as numbers": (FEATURES, normal(3, 4), "number", "which no target takes"),
    "NaN as numbers": (FEATURES, FLOATS * np.nan, "number", "y has nan in example 0"),
    "classes as labels": (
        FEATURES,
        CLASSES,
        "labels",
        "must be rows of 0 and 1 .* got 2 in example 2, column 0",
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
        (-(FLOATS**2), "must be at least 0"),
        (FLOATS[1:] ** 2, r"of shape \(60,\)"),
        (FLOATS * np.nan, "must be finite numbers"),
        (CLASSES.astype(str), "must be finite numbers; got <U21"),
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
    (name,) = examples("train", {"title": texts}, ["good", "bad"]).kinds()["input"]
    assert name == "title"
