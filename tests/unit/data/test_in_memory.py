"""Data in memory: batches or single examples, and the names that data bring along."""

import types

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.config import objects
from pipeline.data.in_memory import adapt, from_object
from pipeline.utils.errors import UsageError

GENERATOR = np.random.default_rng(0)
LABELS = np.arange(48) % 8
HOT = np.eye(8, dtype=np.float32)[LABELS]
TOKENS = GENERATOR.integers(0, 99, (48, 9))
NUMBERS = GENERATOR.normal(size=(48, 4)).astype(np.float32)
ROWS = (GENERATOR.random((48, 4)) < 0.5).astype(np.uint8)


def pixels(*shape):
    return GENERATOR.integers(0, 256, (48, *shape), np.uint8)


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
    data = tf.data.Dataset.from_tensor_slices((NUMBERS, y))
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
    "another order": (
        TABLE[[*"dcba"]],
        "test: the columns of x differ from train in the order; pass",
    ),
    "an unknown column": (
        TABLE.rename(columns={"a": "e"}),
        "test: the columns of x differ from train in a, e;",
    ),
    "a missing column": (
        TABLE[[*"abc"]],
        "test: the columns of x differ from train in d;",
    ),
    "another shape": (NUMBERS[:, :3], "features of test has shape .* differs"),
    "several inputs": ({"a": NUMBERS}, "test and train must have the same x and y"),
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
    with pytest.raises(UsageError, match="'2' is not one of the classes"):
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
    ("column", "value"),
    [
        ("path", None),
        ("path", float("nan")),
        ("path", "x/1.png"),
        ("path", "C:\\x\\1.png"),
        ("label", None),
        ("label", ""),
    ],
)
def test_rows_of_a_table_without_a_file_or_a_label_are_left_out(table, column, value):
    table.loc[4, column] = value
    source = from_object(table)
    assert source.info.splits == {"train": 14}
    assert any("in 1 of 15 rows, such as row 4 (" in x for x in source.info.notes)


FRAME = pandas.DataFrame(
    {
        "age": [20.0, None, 40, 50],
        "color": pandas.Categorical(["red", "blue", "red", None]),
        "since": pandas.to_datetime(["2024-01-01", "2024-02-01", None, "2024-03-01"]),
        "is_new": [True, False, True, False],
        "price": [1.5, 2.5, 3.5, 4.5],
    },
    index=[7, 3, 5, 1],
)


def test_a_table_in_memory_is_read_as_one_in_a_file():
    kinds = {"age": "number", "color": "category", "since": "date", "is_new": "boolean"}
    x, y = FRAME.drop(columns="price"), FRAME["price"]
    for source in (
        from_object(FRAME),
        from_object(FRAME, predict="price"),
        from_object((x, y)),
        from_object((x, y), validation_data=(x[:2], y[:2])),
    ):
        columns = {column.name: column.kind for column in source.info.columns}
        assert columns == kinds
        first = next(iter(source.examples("train").as_numpy_iterator()))
        assert first["numbers"].tolist() == [20, 1]
        assert first["strings"].tolist() == [b"red", b"2024-01-01"]
        assert first["target"] == np.float32(1.5)
    assert source.info.splits == {"train": 4, "validation": 2}
    with pytest.raises(UsageError, match="which column is to be predicted. It has age"):
        from_object(FRAME.rename(columns={"price": "x"}))
    with pytest.raises(UsageError, match="validation has no column 'age', which"):
        from_object((x, y), validation_data=(x[["color"]], y))


def test_channels_that_come_first_are_noted():
    for shape in ((3, 16, 12), (1, 28, 28), (12, 64, 64)):
        (note,) = from_object((pixels(*shape), LABELS)).info.notes
        assert "channels come first, pass np.moveaxis(images, 1, -1)" in note
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


def test_y_beside_words_belongs_to_the_rows_by_position():
    x, y = FRAME.drop(columns="price"), FRAME["price"]
    shifted = y.set_axis([8, 9, 10, 11])
    source = from_object((x, shifted))
    assert source.columns("train")["target"].tolist() == [1.5, 2.5, 3.5, 4.5]
    for wrong in (y[:2], FRAME[["age", "price"]]):
        with pytest.raises(UsageError, match="one value for each of the 4 rows"):
            from_object((x, wrong))
    with pytest.raises(UsageError, match="x has the column 'price', which is y"):
        from_object((FRAME, y))


def test_a_table_and_labels_are_named_by_their_shapes():
    name = objects.name_of((FRAME, FRAME["price"]), "sources")
    assert str(name) == "<arrays (4, 5) DataFrame, (4,) float64>"
