"""Data in memory: batches or single examples, and the names that data bring along."""

import types

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.data.in_memory import adapt, from_object
from pipeline.utils.errors import UsageError

GENERATOR = np.random.default_rng(0)
LABELS = np.arange(48) % 8


def pixels(*shape):
    return GENERATOR.integers(0, 256, (48, *shape), np.uint8)


def slices(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays)


HOT = np.eye(8, dtype=np.float32)[LABELS]
# Name -> the dataset, and the shape of an image.
DATASETS = {
    "single, many channels": (slices(pixels(6, 5, 12), HOT), (6, 5, 12)),
    "single, gray with a channel": (slices(pixels(6, 5, 1), HOT), (6, 5, 1)),
    "single, gray without one": (slices(pixels(6, 5), HOT), (6, 5, 1)),
    "single, as high as classes": (slices(pixels(8, 8, 4), HOT), (8, 8, 4)),
    "single, label (1,)": (slices(pixels(6, 5, 4), LABELS[:, None]), (6, 5, 4)),
    "single, weights": (
        slices(pixels(8, 8, 5), HOT, np.ones(48, "float32")),
        (8, 8, 5),
    ),
    "single, scalars": (slices(pixels(6, 5, 7), LABELS), (6, 5, 7)),
    "single, names": (slices(pixels(6, 5), LABELS.astype(str)), (6, 5, 1)),
    "gray batches": (slices(pixels(6, 5), LABELS).batch(7), (6, 5, 1)),
    "gray batches of fixed size": (
        slices(pixels(6, 5), LABELS).batch(8, True),
        (6, 5, 1),
    ),
    "gray batches of one": (slices(pixels(6, 5), LABELS).batch(1), (6, 5, 1)),
    "one-hot batches": (slices(pixels(6, 5, 4), HOT).batch(8), (6, 5, 4)),
}


@pytest.mark.parametrize("kind", DATASETS)
def test_batches_and_single_examples_are_told_apart(kind):
    data, shape = DATASETS[kind]
    source = from_object(data)
    assert (
        source.info.splits == {"train": 48}
        and source.info.fields["image"].shape == shape
    )
    np.testing.assert_array_equal(source.columns("train")["label"], LABELS)


def test_a_dataset_of_unknown_sizes_is_told_by_its_elements():
    images = pixels(6, 5, 4)
    signature = (
        tf.TensorSpec([None, None, None], tf.uint8),
        tf.TensorSpec([None], tf.float32),
    )
    single = tf.data.Dataset.from_generator(
        lambda: zip(images, HOT, strict=True), output_signature=signature
    )
    assert from_object(single).info.fields["image"].shape == (6, 5, 4)
    signature = (
        tf.TensorSpec([None, None, None], tf.uint8),
        tf.TensorSpec([None], tf.int64),
    )
    batches = tf.data.Dataset.from_generator(
        lambda: (
            (images[at : at + 7, ..., 0], LABELS[at : at + 7]) for at in range(0, 48, 7)
        ),
        output_signature=signature,
    )
    assert from_object(batches).info.fields["image"].shape == (6, 5, 1)


def test_vectors_are_told_from_batches_of_them():
    features, target = np.ones((48, 3), "float32"), np.arange(48, dtype="float32")
    for data in (
        slices(features, target),
        slices(features, target[:, None]),
        slices(features, target).batch(5),
        slices(features, target).batch(3, drop_remainder=True),
    ):
        source = from_object(data)
        assert source.info.fields["features"].shape == (3,)
        np.testing.assert_array_equal(source.columns("train")["target"], target)


MASKS = LABELS[:, None, None] + np.zeros((48, 6, 5), np.uint8)
TOKENS = GENERATOR.integers(0, 99, (48, 9))
NUMBERS = GENERATOR.normal(size=(48, 4)).astype(np.float32)
SERIES = GENERATOR.normal(size=(48, 9, 3)).astype(np.float32)
ROWS = (GENERATOR.random((48, 4)) < 0.5).astype(np.uint8)
# Name -> x, y, and the field of y.
EXAMPLES = {
    "features and classes": (NUMBERS, LABELS, "label"),
    "features and one-hot classes": (NUMBERS, HOT, "label"),
    "as many features as classes": (HOT + NUMBERS[:, :1], HOT, "label"),
    "features and several labels": (NUMBERS, ROWS, "labels"),
    "features and a number": (NUMBERS, NUMBERS[:, 0], "target"),
    "features and numbers": (NUMBERS, NUMBERS[:, :3], "target"),
    "features and as many numbers": (NUMBERS, NUMBERS, "target"),
    "a feature and a number": (NUMBERS[:, 0], NUMBERS[:, 1], "target"),
    "tokens and classes": (TOKENS, LABELS, "label"),
    "tokens and one-hot classes": (TOKENS, HOT, "label"),
    "time series and classes": (SERIES, LABELS, "label"),
    "time series and several labels": (SERIES, ROWS, "labels"),
    "time series and numbers": (SERIES, NUMBERS, "target"),
    "images and several labels": (pixels(6, 5, 3), ROWS, "labels"),
    "images and a number": (pixels(6, 5, 3), NUMBERS[:, 0], "target"),
    "images and numbers": (pixels(6, 5, 3), NUMBERS, "target"),
    "images and masks": (pixels(6, 5, 3), MASKS, "mask"),
    "images and masks with a channel": (pixels(6, 5, 3), MASKS[..., None], "mask"),
    "images and float masks": (pixels(6, 5, 3), MASKS.astype("float32"), "mask"),
    "gray images and masks": (pixels(6, 5), MASKS, "mask"),
    "gray images and one-hot classes as wide": (pixels(6, 8), HOT, "label"),
}


FORMS = ("single", "batches", "equal batches")
# Two columns of numbers, 16 of each, are read as features and numbers of one example.
AMBIGUOUS = ("a feature and a number", "equal batches")


@pytest.mark.parametrize(
    ("kind", "form"),
    [(k, f) for k in EXAMPLES for f in FORMS if (k, f) != AMBIGUOUS],
)
def test_a_dataset_is_read_as_its_arrays(kind, form):
    x, y, field = EXAMPLES[kind]
    data = slices(x, y)
    if form == "batches":
        data = data.batch(7)
    if form == "equal batches":
        data = data.batch(16, drop_remainder=True)
    arrays, source = from_object((x, y)), from_object(data)
    assert field in source.info.fields
    assert source.info.fields == arrays.info.fields
    assert source.fingerprint() == arrays.fingerprint()


@pytest.mark.parametrize("batch", [None, 7, 16])
def test_elements_may_have_a_dictionary_of_inputs(batch):
    x = {"left": pixels(6, 5, 3), "table": NUMBERS}
    for y in (LABELS, HOT, ROWS, NUMBERS[:, 0]):
        data = slices(x, y) if batch is None else slices(x, y).batch(batch)
        source, arrays = from_object(data), from_object((x, y))
        assert {"left/image", "table/features"} < set(source.info.fields)
        assert source.fingerprint() == arrays.fingerprint()
        batches = arrays_of_batches([(x, y)] * 2)
        assert from_object(batches).info.splits == {"train": 96}


def test_a_dictionary_has_an_input_and_a_target_by_name():
    for row in (
        {"features": NUMBERS, "target": NUMBERS[:, 0]},
        {"x": NUMBERS, "y": NUMBERS[:, 0]},
    ):
        expected = from_object((NUMBERS, NUMBERS[:, 0])).fingerprint()
        assert from_object(row).fingerprint() == expected
        data = tf.data.Dataset.from_tensor_slices(row)
        assert from_object(data).fingerprint() == expected
        assert from_object(data.batch(5)).fingerprint() == expected


class arrays_of_batches(keras.utils.PyDataset):
    """A PyDataset of a list of batches."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, number):
        return self.batches[number]


def test_lists_of_labels_may_differ_in_length_between_batches():
    batches = [(NUMBERS[:2], [["b"], ["a"]]), (NUMBERS[2:4], [[], ["c", "a"]])]
    source = from_object(arrays_of_batches(batches))
    assert source.info.class_names == ("a", "b", "c")
    np.testing.assert_array_equal(
        source.columns("train")["labels"],
        [[0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 0, 1]],
    )


def test_the_arrays_of_train_decide_for_all_splits():
    iris = NUMBERS, LABELS % 3
    source = from_object(iris, validation_data=(NUMBERS[:4], np.array([2, 0, 2, 0])))
    assert "label" in source.info.fields
    assert source.columns("validation")["label"].tolist() == [2, 0, 2, 0]
    numbers = NUMBERS, LABELS + 0.5
    source = from_object(numbers, validation_data=(NUMBERS[:3], [0, 1, 2]))
    assert source.columns("validation")["target"].dtype == np.float32
    source = from_object((NUMBERS, ROWS), test_data=(NUMBERS[:4], np.eye(4)))
    assert source.columns("test")["labels"].tolist() == np.eye(4).tolist()
    lists = [["a", "b"], ["b"]] * 24
    source = from_object((NUMBERS, lists), test_data=(NUMBERS[:2], [["b"], []]))
    assert source.columns("test")["labels"].tolist() == [[0, 1], [0, 0]]
    source = from_object((NUMBERS, lists), test_data=(NUMBERS[:2], [["b"], ["a"]]))
    assert source.columns("test")["labels"].tolist() == [[0, 1], [1, 0]]
    large = GENERATOR.random((4, 9, 9))
    small = GENERATOR.random((4, 9, 9)).astype("float32")
    source = from_object(
        (large, [0, 1, 0, 1]), test_data=(small, [0, 1, 0, 1]), input="features"
    )
    assert source.info.fields["features"].shape == (9, 9)


def test_integers_and_floats_in_different_splits_are_floats():
    source = from_object((TOKENS, LABELS), test_data=(TOKENS + 0.5, LABELS))
    assert source.info.fields["features"].dtype == tf.float32
    np.testing.assert_array_equal(source.columns("train")["features"], TOKENS)


def test_input_and_target_can_be_set():
    flat = pixels(8, 8)
    fields = from_object((flat, LABELS), input="features", target="number").info.fields
    assert fields["features"] == tf.TensorSpec((8, 8), tf.int64)
    assert fields["target"] == tf.TensorSpec((), tf.float32)
    source = from_object((NUMBERS, HOT), target="labels", class_names=[*"abcdefgh"])
    assert source.info.fields["labels"] == tf.TensorSpec((8,), tf.uint8)
    assert not source.info.notes


def test_a_function_need_not_take_input_and_target():
    source = adapt(lambda: (NUMBERS, LABELS))(target="number")
    assert "target" in source.info.fields
    source = adapt(lambda target: (NUMBERS, LABELS + target))(target=5)
    assert source.columns("train")["target"].tolist() == (LABELS + 5).tolist()


def test_what_was_assumed_is_noted_once():
    source = from_object((NUMBERS, LABELS), test_data=(NUMBERS, LABELS))
    (note,) = source.info.notes
    assert 'task={"target": "number"}' in note
    assert not from_object((NUMBERS, LABELS), class_names=[*"abcdefgh"]).info.notes


def test_class_names_make_whole_numbers_classes():
    y = LABELS // 2 * 2
    assert "target" in from_object((NUMBERS, y)).info.fields
    source = from_object((NUMBERS, y), class_names=[*"abcdefgh"])
    assert source.columns("train")["label"].tolist() == y.tolist()
    data = slices(NUMBERS, y)
    data.class_names = [*"abcdefgh"]
    assert from_object(data).columns("train")["label"].tolist() == y.tolist()
    with pytest.raises(UsageError, match="class_names names classes, but y has num"):
        from_object((NUMBERS, y + 0.5), class_names=[*"abcdefgh"])


def test_tables_name_their_columns():
    x = pandas.DataFrame({"sepal": [1.5, 2.5], "petal": [3, 4]})
    source = from_object(
        (x, pandas.Series(["a", "b"])), validation_data=(x, ["b", "a"])
    )
    assert source.info.feature_names == ("sepal", "petal")
    assert source.info.class_names == ("a", "b")


def test_columns_of_several_labels_are_matched_over_the_splits():
    y = pandas.DataFrame({"cat": [1, 0, 1], "dog": [1, 0, 0]})
    source = from_object((NUMBERS[:3], y), test_data=(NUMBERS[:3], y[["dog", "cat"]]))
    assert source.info.class_names == ("cat", "dog")
    np.testing.assert_array_equal(
        source.columns("test")["labels"], source.columns("train")["labels"]
    )


TABLE = pandas.DataFrame(NUMBERS, columns=[*"abcd"])
DIFFERENT = {
    "another order": (TABLE[[*"dcba"]], "test: the columns of x are in another order"),
    "an unknown column": (
        TABLE.rename(columns={"a": "e"}),
        "test: x has a column 'e', unknown in train",
    ),
    "a missing column": (TABLE[[*"abc"]], "test: x lacks the column 'd'"),
    "another shape": (NUMBERS[:, :3], "features of test has shape .* differs"),
    "several inputs": ({"a": NUMBERS}, "test and train must have the same inputs"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_splits_that_differ_are_refused(case):
    x, message = DIFFERENT[case]
    with pytest.raises(UsageError, match=message) as caught:
        from_object((TABLE, LABELS), test_data=(x, LABELS))
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    """Class folders 2, 10 and ant with five images each."""
    root = tmp_path_factory.mktemp("pets")
    for name in ("10", "2", "ant"):
        (root / name).mkdir()
        for number in range(5):
            Image.fromarray(pixels(6, 5, 3)[number]).save(root / name / f"{number}.png")
    return root


def of_folder(root, **options):
    return keras.utils.image_dataset_from_directory(
        root, image_size=(6, 5), batch_size=4, verbose=False, **options
    )


def test_datasets_of_keras_keep_their_class_names(pets):
    data = of_folder(pets)
    for same in (data, data.cache().prefetch(2), data.shuffle(3).take(99)):
        source = from_object(same)
        assert source.info.class_names == ("10", "2", "ant") and not source.info.notes
    hot = from_object(
        of_folder(pets, label_mode="categorical", class_names=["ant", "2", "10"])
    )
    assert hot.info.class_names == ("ant", "2", "10")
    binary = from_object(of_folder(pets, label_mode="binary", class_names=["ant", "2"]))
    assert binary.info.class_names == ("ant", "2")


def test_names_before_a_function_are_not_used_but_said(pets):
    source = from_object(of_folder(pets).map(lambda x, y: (x / 255, y)))
    assert source.info.class_names == ("0", "1", "2")
    (note,) = source.info.notes
    assert "['10', '2', 'ant']" in note and "class_names=... names them" in note


def test_iterators_of_keras_keep_their_class_indices(pets):
    generator = keras.src.legacy.preprocessing.image.ImageDataGenerator()
    options = {"target_size": (6, 5), "batch_size": 4, "shuffle": False}
    for mode in ("sparse", "categorical"):
        data = generator.flow_from_directory(str(pets), class_mode=mode, **options)
        source = from_object(data)
        assert source.info.class_names == ("10", "2", "ant")
        np.testing.assert_array_equal(
            source.columns("train")["label"], np.repeat([0, 1, 2], 5)
        )


def test_splits_that_number_their_classes_differently_are_matched_by_name(pets):
    source = from_object(
        of_folder(pets, shuffle=False),
        validation_data=of_folder(pets, shuffle=False, class_names=["ant", "10", "2"]),
    )
    np.testing.assert_array_equal(
        source.columns("train")["label"], np.repeat([0, 1, 2], 5)
    )
    np.testing.assert_array_equal(
        source.columns("validation")["label"], np.repeat([2, 0, 1], 5)
    )
    few = of_folder(pets, class_names=["ant", "10"], label_mode="int")
    with pytest.raises(UsageError, match="class '2'.*train"):
        from_object(few, validation_data=of_folder(pets))


def test_class_names_that_are_given_order_or_rename_those_of_the_data(pets):
    data = of_folder(pets, shuffle=False)
    ordered = from_object(data, class_names=["2", "10", "ant", "bee"])
    np.testing.assert_array_equal(
        ordered.columns("train")["label"], np.repeat([1, 0, 2], 5)
    )
    renamed = from_object(data, class_names={"dix": 0, "deux": 1, "fourmi": 2})
    assert renamed.info.class_names == ("dix", "deux", "fourmi")
    np.testing.assert_array_equal(
        renamed.columns("train")["label"], np.repeat([0, 1, 2], 5)
    )
    with pytest.raises(UsageError, match="2 names.*3"):
        from_object(data, class_names=["dix", "deux"])


def test_a_one_hot_table_of_labels_names_the_classes():
    table = pandas.get_dummies(pandas.Series(["owl", "elk", "owl", "elk"]))
    source = from_object((pixels(6, 5, 3)[:4], table))
    assert source.info.class_names == ("elk", "owl")


@pytest.fixture
def table(pets):
    files = sorted(str(path) for path in pets.rglob("*.png"))
    return pandas.DataFrame(
        {"path": files, "label": [file.split("/")[-2] for file in files]}
    )


def test_a_table_is_read_with_backslashes_and_mixed_columns(table, pets, monkeypatch):
    monkeypatch.chdir(pets)
    table["path"] = [
        file.removeprefix(f"{pets}/").replace("/", "\\") for file in table["path"]
    ]
    source = from_object(table)
    assert source.info.splits == {"train": 15}
    assert len([*source.examples("train").as_numpy_iterator()]) == 15


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("path", None, r"row 4; .*dropna\(subset=\['path'\]\)"),
        ("path", float("nan"), "1 row without path, such as row 4"),
        ("label", None, "1 row without label, such as row 4"),
        ("label", "", "1 row without label, such as row 4"),
        ("path", "x/1.png", "files do not exist, such as x/1.png in row 4"),
        ("path", "C:\\x\\1.png", r"such as C:\\x\\1.png in row 4"),
    ],
)
def test_a_missing_value_of_a_table_is_named_with_its_row(
    table, column, value, message
):
    table.loc[4, column] = value
    with pytest.raises(UsageError, match=message):
        from_object(table)


def test_channels_that_come_first_are_noted():
    for shape in ((3, 16, 12), (1, 28, 28), (12, 64, 64)):
        (note,) = from_object((pixels(*shape), LABELS)).info.notes
        assert "channels come first, give np.moveaxis(images, 1, -1)" in note
    for shape in ((16, 12, 3), (28, 28), (9, 9, 200), (4, 4, 2), (3, 3, 1)):
        assert not from_object((pixels(*shape), LABELS)).info.notes


class HuggingFace:
    """What is used of a `datasets.Dataset`, which is an extra."""

    def __init__(self, pictures, labels, names):
        self.columns_by_name = {"image": pictures, "fine": labels, "label": labels}
        self.column_names = [*self.columns_by_name]
        label = types.SimpleNamespace(names=names)
        fine_label = types.SimpleNamespace(names=["x", "y", "z", "u"])
        self.features = {"image": None, "fine": fine_label, "label": label}

    def __len__(self):
        return len(self.columns_by_name["label"])

    def __getitem__(self, name):
        return self.columns_by_name[name]


def test_the_names_of_a_class_label_are_those_of_its_column():
    pictures, labels = list(pixels(6, 5, 3)), (np.arange(48) % 3).tolist()
    names = ["zebra", "ant", "mouse"]
    source = from_object(
        HuggingFace(pictures, labels, names),
        validation_data=HuggingFace(pictures[:2], [0, 1], ["ant", "zebra"]),
    )
    assert source.info.class_names == ("zebra", "ant", "mouse")
    np.testing.assert_array_equal(source.columns("train")["label"], labels)
    np.testing.assert_array_equal(source.columns("validation")["label"], [1, 0])
    with pytest.raises(UsageError, match="example 1 .*-1"):
        from_object(HuggingFace(pictures[:3], [0, -1, 2], names))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (slices(pixels(6, 5)).map(lambda x: x).batch(8), "has no labels; give"),
        (
            tf.data.Dataset.from_tensor_slices(
                {"Picture": pixels(6, 5), "label": LABELS}
            ),
            "has the fields Picture, label; give",
        ),
        (
            slices(pixels(6, 5), LABELS).map(
                lambda x, y: {"image": x, "label": y, "mask": x}
            ),
            "could be the target: label, mask; remove",
        ),
        (
            {"image": pixels(6, 5), "features": pixels(3), "y": LABELS},
            "train has several .*could be the input",
        ),
        ({"image": pixels(6, 5), "Label": LABELS}, "train has the fields image, Label"),
        (
            tf.data.Dataset.from_tensor_slices(
                (tf.ragged.constant([[1.0], [1.0, 2.0]]), [0, 1])
            ),
            "tf.RaggedTensor; pad it with to_tensor",
        ),
        (
            tf.data.Dataset.from_tensor_slices(
                (tf.sparse.from_dense(np.eye(2)), [0, 1])
            ),
            "tf.SparseTensor; use tf.sparse.to_dense",
        ),
        (
            tf.data.Dataset.from_tensor_slices((np.ones(2), {"a": [0, 1]})),
            "y is a dictionary",
        ),
        ((pixels(6, 5), LABELS + 1), "begin with 1; subtract 1"),
    ],
)
def test_data_without_what_is_needed_are_refused_in_one_line(data, message):
    with pytest.raises(UsageError, match=message) as caught:
        from_object(data)
    assert "\n" not in str(caught.value)


def test_sample_weights_may_be_those_of_one_split():
    weight = np.linspace(0, 2, 48, dtype=np.float32)
    plain, weighted = (pixels(6, 5), LABELS), (pixels(6, 5), LABELS, weight)
    for data, held_out in ((plain, weighted), (weighted, plain)):
        source = from_object(data, validation_data=held_out)
        for split, part in (("train", data), ("validation", held_out)):
            expected = weight if part is weighted else np.ones(48)
            np.testing.assert_array_equal(
                source.columns(split)["sample_weight"], expected
            )
