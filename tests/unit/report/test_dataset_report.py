"""What `pipeline inspect` says about the columns of a table."""

from types import SimpleNamespace

import numpy as np

from pipeline.contracts import TableColumn
from pipeline.report import dataset_report

COLUMNS = (
    TableColumn("color", "category"),
    TableColumn("age", "number"),
    TableColumn("remark", "text"),
    TableColumn("empty", "number"),
)


def data_of(columns):
    strings = np.empty((10, 2), object)
    strings[:, 0] = [b"red"] * 5 + [b"blue"] * 3 + [b""] * 2
    strings[:, 1] = [f"{row} {'x' * 60}".encode() for row in range(10)]
    numbers = np.column_stack([np.arange(10.0), np.full(10, np.nan)])
    numbers[3, 0] = np.nan
    raw = {"numbers": numbers, "strings": strings}

    class Train:
        def __len__(self):
            return 10

        def raw(self, positions):
            return {name: values[positions] for name, values in raw.items()}

    source = SimpleNamespace(info=SimpleNamespace(columns=columns))
    return SimpleNamespace(source=source, splits={"train": Train()})


def test_each_column_has_its_kind_gaps_and_values():
    lines = list(dataset_report.table_columns(data_of(COLUMNS)))
    assert {name for name, _ in lines} == {"column"}
    color, age, remark, empty = [text for _, text in lines]
    assert color == (
        "color: category, 20.0% missing, 2 different, such as 'red' (62.5%), 'blue'"
        " (37.5%)"
    )
    assert age == "age: number, 10.0% missing, 0 to 9"
    assert remark.startswith("remark: text, 10 different, such as '0 xxx")
    assert "x..." in remark and len(remark) < 200
    assert empty == "empty: number, 100.0% missing, no values"


def test_other_data_has_no_columns():
    assert list(dataset_report.table_columns(data_of(None))) == []
