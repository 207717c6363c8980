"""Rows of a table: what is learned, decoded, asked of a server and given a model."""

import datetime
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.contracts import Info, TableColumn, TrainingExamples
from pipeline.layers.columns import CATEGORIES, FEATURES, WORDS
from pipeline.models.tabular import tabular
from pipeline.report.input_report import report_of
from pipeline.tasks.inputs.table import TableInput, table
from pipeline.utils.errors import UsageError

NAN = float("nan")
COLUMNS = (
    TableColumn("age", "number"),
    TableColumn("town", "category"),
    TableColumn("member", "boolean"),
    TableColumn("income", "number"),
    TableColumn("since", "date", "dmy"),
    TableColumn("remark", "text"),
    TableColumn("color", "category"),
)
TOWNS = [f"town {number}" for number in range(11)]
NUMBERS = np.array(
    [[row, row % 2, NAN if row % 5 == 0 else 1e4 + row] for row in range(36)]
)
STRINGS = np.array(
    [
        [
            TOWNS[row % 11].encode(),
            b"" if row == 1 else f"{row % 28 + 1}.{row % 12 + 1}.{1990 + row}".encode(),
            f"Said on day {row}: good-bye!".encode(),
            [b"red", b"green", b"blue"][row % 3],
        ]
        for row in range(36)
    ],
    object,
)


class Examples(TrainingExamples):
    """Raw training examples in two batches."""

    def __init__(self, numbers, strings, short=()):
        self._fields = {"numbers": numbers, "strings": strings}
        self._short = frozenset(short)

    def __len__(self):
        return len(self._fields["numbers"])

    @property
    def short_fields(self):
        return self._short

    def column(self, name):
        return self._fields[name]

    def batches(self, fields=None):
        half = len(self) // 2
        for rows in (slice(0, half), slice(half, None)):
            yield {name: values[rows] for name, values in self._fields.items()}


def info(columns, numbers=3, strings=4):
    fields = {
        "numbers": tf.TensorSpec((numbers,), tf.float64),
        "strings": tf.TensorSpec((strings,), tf.string),
    }
    return Info({"train": 9}, fields, columns=tuple(columns))


def learned(columns, numbers, strings=None, short=("numbers",), **options):
    numbers = np.asarray(numbers, np.float64)
    if strings is None:
        strings = np.empty((len(numbers), 0), object)
    own = table(info(columns, numbers.shape[1], strings.shape[1]), **options)
    metadata = own.learn(Examples(numbers, strings, short))
    return own.with_metadata({**own.metadata, **metadata})


def batch(numbers, strings=None):
    if strings is None:
        strings = np.empty((len(numbers), 0), object)
    return {
        "numbers": tf.constant(np.asarray(numbers, np.float64)),
        "strings": tf.constant(strings, tf.string, strings.shape),
    }


@pytest.fixture(scope="module")
def own():
    return learned(COLUMNS, NUMBERS, STRINGS)


@pytest.fixture(scope="module")
def decoded(own):
    return own.decode(batch(NUMBERS, STRINGS))[0]


def numpy(fields):
    return {name: np.asarray(values) for name, values in fields.items()}


def assert_equal(fields, others):
    assert fields.keys() == others.keys()
    for name, values in fields.items():
        np.testing.assert_array_equal(values, others[name], err_msg=name)


def test_numbers_get_mean_0_and_deviation_1(decoded):
    numbers = decoded["numbers"].numpy()
    present = numbers[~np.isnan(NUMBERS[:, 2])]
    np.testing.assert_allclose(numbers[:, :2].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(numbers[:, :2].std(axis=0), 1, atol=1e-6)
    np.testing.assert_allclose(present[:, 2].std(), 1, atol=1e-6)


def test_the_network_of_tables_takes_all_kinds_of_columns(own, decoded):
    """Also more than ten words of a column, which are embedded."""
    inputs = own.inputs()
    assert inputs.keys() == {FEATURES, CATEGORIES, WORDS}
    network = keras.Model(inputs, tabular(inputs, own.metadata, units=8))
    outputs = network(own.network_inputs(own.prepare(decoded)))
    assert outputs.shape == (36, 8) and np.isfinite(outputs).all()


def test_dates_in_another_order_are_no_dates_but_iso_is(own):
    strings = STRINGS[:4].copy()
    strings[:, 1] = [b"17.5.2024", b"2024-05-17", b"5/17/2024", b"20240517"]
    dates = own.decode(batch(NUMBERS[:4], strings))[0]["dates"][:, 0, :3]
    assert dates.numpy().tolist() == [[2024, 5, 17], [2024, 5, 17], [0] * 3, [0] * 3]


def test_rows_of_numbers_are_equal_by_chance_but_texts_are_copies(own):
    assert learned([TableColumn("a", "number")], [[1.0], [1.0]]).compared is None
    assert own.compared == ("numbers", "gaps", "codes")


def test_gaps_are_the_mean_and_another_input(decoded):
    is_gap = np.isnan(NUMBERS[:, 2])
    assert (decoded["numbers"].numpy()[is_gap, 2] == 0).all()
    np.testing.assert_array_equal(decoded["gaps"][:, 0], is_gap)


@pytest.mark.parametrize("short", [("numbers",), ()])
def test_what_is_learned_does_not_depend_on_how_columns_are_read(own, short):
    other = learned(COLUMNS, NUMBERS, STRINGS, short)
    assert other.metadata == own.metadata


def test_one_example_is_decoded_as_one_of_a_batch(own, decoded):
    for row in (0, 1, 35):
        raw = batch(NUMBERS[row : row + 1], STRINGS[row : row + 1])
        one, _ = own.decode({name: values[0] for name, values in raw.items()})
        assert_equal(numpy(one), {n: v[row] for n, v in numpy(decoded).items()})


def test_shapes_are_known_without_values(decoded):
    columns = [column for column in COLUMNS if column.kind != "text"]
    own = learned(columns, NUMBERS, STRINGS[:, [0, 1, 3]])
    specs = {
        "numbers": tf.TensorSpec((3,), tf.float64),
        "strings": tf.TensorSpec((3,), tf.string),
    }
    graph = tf.function(lambda fields: own.decode(fields)[0], autograph=False)
    outputs = graph.get_concrete_function(specs).structured_outputs
    for name, values in outputs.items():
        assert values.shape == decoded[name].shape[1:]
        assert values.dtype == decoded[name].dtype


def test_requests_of_decoded_examples_are_decoded_alike(own, decoded):
    (serving,) = own.signatures()
    request = serving.request(numpy(decoded))
    assert list(request) == [column.name for column in COLUMNS]
    arguments = []
    for name, spec in serving.specs.items():
        arguments.append(tf.constant(request[name], spec.dtype))
    again = numpy(serving.read(*arguments))
    expected = numpy(decoded)
    np.testing.assert_allclose(again["numbers"], expected["numbers"], atol=2e-3)
    again.pop("numbers")
    expected.pop("numbers")
    assert_equal(again, expected)


def test_words_that_are_rare_or_new_are_unknown():
    words = np.array([[b"a"]] * 5 + [[b"b"]] * 4 + [[b"c"]] * 2, object)
    column = TableColumn("x", "category")
    own = learned([column], np.zeros((11, 0)), words)
    assert own.columns[0]["vocabulary"] == ["a", "b"]
    assert own.columns[0]["unknown"] == pytest.approx(2 / 11)
    new = np.array([[b"a"], [b"b"], [b"c"], [b""], [b"\xff"]], object)
    codes = own.decode(batch(np.zeros((5, 0)), new))[0]["codes"]
    assert codes.numpy().tolist() == [[1], [2], [0], [0], [0]]


def test_few_words_are_one_hot_and_many_are_embedded(own, decoded):
    prepared = own.prepare(decoded)
    features = prepared[FEATURES].numpy()
    colors = np.asarray(decoded["codes"])[:, 1]
    start = 4  # after three numbers and a gap
    np.testing.assert_array_equal(features[:, start : start + 4], np.eye(4)[colors])
    np.testing.assert_array_equal(prepared[CATEGORIES][:, 0], decoded["codes"][:, 0])
    inputs = own.inputs()
    assert inputs.keys() == {FEATURES, CATEGORIES, WORDS}
    for name, values in own.network_inputs(prepared).items():
        assert inputs[name].shape[1:] == values.shape[1:]


def dates(texts, order="ymd", learn=None):
    strings = np.array([[text.encode()] for text in texts], object)
    column = TableColumn("day", "date", order)
    own = learned([column], np.zeros((len(texts), 0)), strings)
    fields, _ = own.decode(batch(np.zeros((len(texts), 0)), strings))
    return own, fields


@pytest.mark.parametrize(
    ("text", "order", "parts"),
    [
        ("2020-01-31", "ymd", [2020, 1, 31, 0, 0, 0]),
        ("31.1.2020", "dmy", [2020, 1, 31, 0, 0, 0]),
        ("1/31/2020 9:05", "mdy", [2020, 1, 31, 9, 5, 0]),
        ("2020-01-31T10:20:30.123456789Z", "ymd", [2020, 1, 31, 10, 20, 30]),
        ("2020-01-31 10:20+02:00", "ymd", [2020, 1, 31, 10, 20, 0]),
        ("2020-01-31 10:20:30-0530", "ymd", [2020, 1, 31, 10, 20, 30]),
        ("31-01-2020", "dmy", [2020, 1, 31, 0, 0, 0]),
        ("2020-01-31 10:20", "dmy", [2020, 1, 31, 10, 20, 0]),
        ("", "ymd", [0, 0, 0, 0, 0, 0]),
        ("tomorrow", "dmy", [0, 0, 0, 0, 0, 0]),
        ("99999999999999", "ymd", [0, 0, 0, 0, 0, 0]),
    ],
)
def test_parts_of_dates(text, order, parts):
    own = TableInput({"columns": [{"name": "day", "kind": "date", "order": order}]})
    fields, _ = own.decode(
        {"numbers": tf.zeros((0,)), "strings": tf.constant([text.encode()])}
    )
    assert fields["dates"].numpy().tolist() == [parts]


def test_cycles_are_those_of_the_calendar():
    first = datetime.datetime(1999, 12, 25, 1, 30)
    days = [first + datetime.timedelta(days=37 * n, hours=n) for n in range(60)]
    own, fields = dates([day.isoformat(" ") for day in days])
    features = own.prepare(fields)[FEATURES].numpy()
    assert features.shape == (60, 9)
    for row, day in zip(features, days, strict=True):
        places = [
            (day.month - 1) / 12,
            (day.day - 1) / 31,
            (day.weekday() + 2) % 7 / 7,
            (day.hour + day.minute / 60) / 24,
        ]
        expected = []
        for place in places:
            expected += [math.sin(2 * math.pi * place), math.cos(2 * math.pi * place)]
        np.testing.assert_allclose(row[1:], expected, atol=1e-5)
    np.testing.assert_allclose(features[:, 0].mean(), 0, atol=1e-3)
    np.testing.assert_allclose(features[:, 0].std(), 1, atol=1e-3)


def test_no_date_is_zeros_and_another_input():
    own, fields = dates(["2020-01-31", "", "2021-05-06"])
    features = own.prepare(fields)[FEATURES].numpy()
    assert features[1].tolist() == [0] * 7 + [1]
    assert features[[0, 2], -1].tolist() == [0, 0]


def test_milliseconds_keep_their_differences():
    times = 1.7e12 + np.arange(8.0)[:, None]
    own = learned([TableColumn("time", "number")], times)
    numbers = own.decode(batch(times))[0]["numbers"].numpy()[:, 0]
    np.testing.assert_allclose(np.diff(numbers), np.full(7, 1 / times.std()), rtol=1e-5)
    (serving,) = own.signatures()
    assert serving.specs["time"].dtype == tf.float64
    read = serving.read(tf.constant(times[:, 0]))["numbers"].numpy()[:, 0]
    np.testing.assert_array_equal(read, numbers)


@pytest.mark.parametrize("value", [0.0, 3.0, 1e12])
def test_a_constant_is_zero(value):
    own = learned([TableColumn("x", "number")], np.full((5, 1), value))
    assert own.decode(batch(np.full((5, 1), value)))[0]["numbers"].numpy().max() == 0
    assert np.isfinite(own.decode(batch([[value + 1]]))[0]["numbers"]).all()


def test_a_column_without_numbers_is_zero():
    own = learned([TableColumn("x", "number")], np.full((5, 1), NAN))
    fields, _ = own.decode(batch([[NAN], [1.0]]))
    assert fields["numbers"].numpy().tolist() == [[0], [1]]
    assert fields["gaps"].numpy().tolist() == [[1], [0]]


def test_a_boolean_without_a_value_is_asked_of_the_server_as_it_was_decoded():
    own = learned([TableColumn("x", "boolean")], [[0.0], [1.0], [1.0]])
    fields, _ = own.decode(batch([[NAN], [0.0], [1.0]]))
    (serving,) = own.signatures()
    request = serving.request(numpy(fields))
    assert request["x"].tolist() == [True, False, True]
    again = serving.read(tf.constant(request["x"]))
    np.testing.assert_allclose(again["numbers"], fields["numbers"], atol=1e-6)


def test_raw_numbers_are_as_they_are():
    own = learned([TableColumn("x", "number")], [[5.0], [NAN], [9.0]], raw=True)
    numbers = own.decode(batch([[5.0], [NAN], [9.0]]))[0]["numbers"].numpy()
    assert numbers[:, 0].tolist() == [5, 0, 9]


def test_columns_are_matched_by_their_names(own, decoded):
    class Source:
        info = info(COLUMNS[::-1])

    numbers = NUMBERS[:, ::-1].copy()
    strings = STRINGS[:, ::-1].copy()
    matched = own.match(Source())
    assert_equal(numpy(matched.decode(batch(numbers, strings))[0]), numpy(decoded))


@pytest.mark.parametrize("position", [0, 1])
def test_a_column_that_is_missing_is_named(own, position):
    class Source:
        info = info([*COLUMNS[:position], *COLUMNS[position + 1 :]])

    name = COLUMNS[position].name
    with pytest.raises(UsageError, match=f"no column '{name}'"):
        own.match(Source())


def test_a_column_of_another_kind_is_named(own):
    class Source:
        info = info([TableColumn("age", "category"), *COLUMNS[1:]])

    with pytest.raises(UsageError, match="no column 'age' of the kind number"):
        own.match(Source())


@pytest.mark.parametrize("titles", [("a b", "a_b"), ("price $", "price €"), ("a", "A")])
def test_columns_with_one_argument_are_named(titles):
    with pytest.raises(UsageError, match="rename one"):
        table(info([TableColumn(title, "number") for title in titles], 2, 0))


def test_columns_of_other_alphabets_have_arguments():
    titles = ["年龄", "收入", "возраст", "Größe", "2020", "#"]
    own = learned([TableColumn(title, "number") for title in titles], np.eye(6))
    (serving,) = own.signatures()
    assert len(serving.specs) == 6
    assert all(name.isascii() and name.isidentifier() for name in serving.specs)


def test_words_of_python_are_no_arguments():
    titles = ["self", "return", "class", "None", "Self"]
    own = learned([TableColumn(title, "number") for title in titles], np.eye(5))
    (serving,) = own.signatures()
    assert list(serving.specs) == [*(f"column_{t}" for t in titles[:4]), "Self"]


def test_requests_with_infinity_are_refused():
    own = learned([TableColumn("x", "number")], [[1.0], [2.0]])
    (serving,) = own.signatures()
    with pytest.raises(tf.errors.InvalidArgumentError, match="x"):
        serving.read(tf.constant([1.0, np.inf]))
    assert np.isfinite(serving.read(tf.constant([1.0, NAN]))["numbers"]).all()


def test_a_row_is_shown_with_its_values(own, decoded):
    row = {name: values[5] for name, values in numpy(decoded).items()}
    shown = dict(report_of(own)._values(row))
    assert shown["age"] == "5"
    assert shown["income"] == ""
    assert shown["town"] == "town 5"
    assert shown["since"] == "06-06-1995"
    assert "<th>remark</th>" in report_of(own).html(row)


def test_numbers_of_a_source_without_columns():
    spec = {"numbers": tf.TensorSpec((2,), tf.float32)}
    own = table(Info({"train": 9}, spec, feature_names=("a", "b")))
    assert [column["name"] for column in own.columns] == ["a", "b"]
    with pytest.raises(UsageError, match="vector of a fixed length"):
        table(Info({"train": 9}, {"numbers": tf.TensorSpec((2, 3), tf.float32)}))
