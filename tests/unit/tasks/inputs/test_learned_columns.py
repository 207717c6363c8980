"""Columns of a table: what is learned of them, and how a row is shown."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from pipeline.contracts import TableColumn
from pipeline.data.array_source import ArraySource
from pipeline.data.raw_split import RawSplit
from pipeline.report.input_report import report_of
from pipeline.tasks.inputs.table import table

KINDS = {
    "age": "number",
    "paid": "boolean",
    "color": "category",
    "sold": "date",
    "remark": "text",
}
NUMBERS = [[-2.0, 1.0], [np.nan, 1.0], [4.0, 0.0], [4.0, 1.0], [np.nan, 1.0]]
STRINGS = [
    ["red", "2001-01-31", "<script>alert(1)</script>"],
    ["red", "2003-01-31", "a & b"],
    ["red", "", ""],
    ["<b>", "2001-01-31", "x"],
    ["", "2003-01-31", ""],
]


def learned():
    """The input with what it has learned of these rows, and the rows decoded."""
    strings = np.array([[text.encode() for text in row] for row in STRINGS], object)
    source = ArraySource({"numbers": np.array(NUMBERS), "strings": strings})
    columns = []
    for name, kind in KINDS.items():
        columns.append(TableColumn(name, kind, "ymd" if kind == "date" else ""))
    source.info = dataclasses.replace(source.info, columns=tuple(columns))
    before = table(source.info)
    rows = np.arange(len(NUMBERS))
    examples = RawSplit(source, "train", rows, source.columns("train"))
    after = before.with_metadata({**before.metadata, **before.learn(examples)})
    numbers = tf.constant(NUMBERS, tf.float64)
    fields, _ = after.decode({"numbers": numbers, "strings": tf.constant(STRINGS)})
    return after, {name: value.numpy() for name, value in fields.items()}


def test_each_column_tells_how_often_it_is_missing_and_what_was_learned():
    columns = {column.name: column for column in learned()[0].learned_columns()}
    assert {name: column.kind for name, column in columns.items()} == KINDS
    missing = {name: column.missing for name, column in columns.items()}
    expected = {"age": 0.4, "paid": 0, "color": 0.2, "sold": 0.2, "remark": 0.4}
    assert missing == pytest.approx(expected)
    assert columns["age"].learned == "mean 2, deviation 2.828"
    assert columns["paid"].learned == "true in 80.0%"
    assert columns["color"].learned == "1 word, 40.0% unknown"
    assert columns["sold"].learned == "mean 2002.1, deviation 1 years"
    assert columns["remark"].learned.startswith("nothing")


def test_each_column_names_the_decoded_fields_with_its_values():
    own, fields = learned()
    columns = {column.name: column.fields for column in own.learned_columns()}
    assert columns == {
        "age": {"numbers": 0, "gaps": 0},
        "paid": {"numbers": 1},
        "color": {"codes": 0},
        "sold": {"dates": 0},
        "remark": {"words": 0, "texts": 0},
    }
    counts = {name: values.shape[1] for name, values in fields.items()}
    used = [pair for column in columns.values() for pair in column.items()]
    assert sorted(used) == sorted(
        (name, place) for name, count in counts.items() for place in range(count)
    ), "every value belongs to one column"


def test_a_row_is_shown_as_it_was_and_its_texts_are_escaped():
    own, fields = learned()
    pages = []
    for row in range(len(NUMBERS)):
        pages.append(
            report_of(own).html({name: values[row] for name, values in fields.items()})
        )
    assert "<th>age</th><td>-2</td>" in pages[0] and "<td>1</td>" in pages[0]
    assert "<td>red</td>" in pages[0] and "<td>2001-01-31</td>" in pages[0]
    assert "<script>" not in pages[0] and "&lt;" in pages[0]
    assert "<th>age</th><td></td>" in pages[1] and "&amp;" in pages[1]
    assert "<th>paid</th><td>0</td>" in pages[2]
    assert "<td>(unknown)</td>" in pages[3]
