"""Tables of any format and spelling become the same columns."""

import datetime
import decimal
import gzip

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from pipeline.data import table
from pipeline.utils.errors import UsageError

NAN = float("nan")


def read(folder, content, name="rows.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return table.read(path)


def column(folder, *cells, delimiter=","):
    """A table whose first column has these cells."""
    lines = ['"' + cell.replace('"', '""') + f'"{delimiter}x' for cell in cells]
    return read(folder, "\n".join([f"a{delimiter}b", *lines, ""]))


def arrow(values, **options):
    return table.from_arrow(pa.table({"a": pa.array(values, **options)}), "rows")


def pandas(values, **options):
    frame = pd.DataFrame({"a": pd.Series(values, **options)})
    return table.from_object(frame, "the DataFrame")


def cells(own):
    return {title: values.to_pylist() for title, values in own.columns.items()}


@pytest.mark.parametrize(
    ("delimiter", "words", "numbers"),
    [
        (",", ["1,234.5", "12", "-1,000,000"], [1234.5, 12, -1e6]),
        (",", ["$1,200", "-$3", "€ 0.5", "USD 7", "8 GBP"], [1200, -3, 0.5, 7, 8]),
        (",", ["12 %", "3%", "-0.5 %"], [12, 3, -0.5]),
        (";", ["1.234,5", "12,5", "1.234.567"], [1234.5, 12.5, 1234567]),
        (";", ["1,234", "2,5"], [1.234, 2.5]),
        (",", ["1,234", "2,500"], [1234, 2500]),
        (",", ["1,5", "2,25"], [1.5, 2.25]),
        (",", ["1 234", "12\u00a0345", "1'000"], [1234, 12345, 1000]),
        (",", ["1e3", ".5", "+2", "007"], [1000, 0.5, 2, 7]),
    ],
)
def test_numbers_as_people_write_them(tmp_path, delimiter, words, numbers):
    own = column(tmp_path, *words, delimiter=delimiter)
    np.testing.assert_allclose(own.numbers("a"), numbers)


@pytest.mark.parametrize(
    "gap",
    [
        "",
        "-",
        "--",
        ".",
        "?",
        "NA",
        "N/A",
        "n/a",
        "#N/A",
        "<NA>",
        "NaN",
        "nan",
        "NaT",
        "nil",
        "None",
        "(none)",
        "NULL",
        "null",
        "missing",
        "Unknown",
    ],
)
def test_gaps_among_numbers_and_dates(tmp_path, gap):
    assert column(tmp_path, "1", gap, "$3").numbers("a").tolist()[::2] == [1, 3]
    assert np.isnan(column(tmp_path, "1", gap, "3").numbers("a")[1])
    assert column(tmp_path, "2020-01-02", gap).date_order("a") == "ymd"


def test_words_for_no_value_are_words_among_words(tmp_path):
    own = column(tmp_path, "NA", "EU", "None", "", "NaN")
    assert own.numbers("a") is None
    missing = table.missing(own.columns["a"])
    assert missing.tolist() == [False, False, False, True, True]


def test_a_column_of_gaps_has_no_number(tmp_path):
    assert np.isnan(column(tmp_path, "", "NA").numbers("a")).all()


def test_cells_that_are_not_numbers_are_named(tmp_path):
    own = column(tmp_path, "1", "two", "", "4", "x5")
    assert own.numbers("a") is None
    assert own.not_numbers("a") == [1, 4]
    assert own.where(1).endswith("rows.csv, row 3")


def test_numbers_of_two_forms_are_named(tmp_path):
    own = column(tmp_path, "1,234.5", "1,5", "7")
    assert own.numbers("a") is None
    assert own.not_numbers("a") == [0, 1]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["True", "yes", "NO", "false", ""], [1, 1, 0, 0, NAN]),
        (["TRUE", "NA"], [1, NAN]),
    ],
)
def test_true_and_false(tmp_path, words, values):
    own = column(tmp_path, *words)
    np.testing.assert_array_equal(own.booleans("a"), values)
    assert column(tmp_path, *words, "maybe").booleans("a") is None


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["2020-01-31", "2020/2/1", "2020.12.24"], "ymd"),
        (["2020-01-31T10:20", "2020-01-31 10:20:30.5"], "ymd"),
        (["2020-01-31T10:20:30Z", "2020-01-31 10:20+02:00"], "ymd"),
        (["31.1.2020", "01.02.2020"], "dmy"),
        (["1.2.2020", "3.4.2020"], "dmy"),
        (["31/1/2020 10:30", "1/2/2020"], "dmy"),
        (["1/31/2020", "NA", "1/2/2020"], "mdy"),
        (["2020-01-31", "tomorrow"], None),
        (["2020", "2021"], None),
        (["1.2.3", "1.2.4"], None),
    ],
)
def test_orders_of_dates(tmp_path, words, order):
    assert column(tmp_path, *words).date_order("a") == order


@pytest.mark.parametrize(
    "words", [["45.13.2020", "1.1.2020"], ["13/05/2024", "05/14/2024"]]
)
def test_what_is_no_date_of_the_calendar(tmp_path, words):
    assert column(tmp_path, *words).date_order("a") is None


def test_dates_in_any_order_become_those_of_iso(tmp_path):
    for words in (
        ["31.1.2020 10:30", "", "1.2.2020"],
        ["1/31/2020 10:30", "", "2/1/2020"],
    ):
        dates = table.iso_dates(column(tmp_path, *words), "a").to_pylist()
        assert dates == ["2020-1-31 10:30", "", "2020-2-1"]


def test_dates_in_either_order_are_left_to_the_model(tmp_path):
    """A model that has learned mdy reads 01/05/2024 as the 5th of January."""
    words = ["01/05/2024", "02/06/2024"]
    own = column(tmp_path, *words)
    assert own.date_order("a") == "dmy" and table.has_ambiguous_dates(own, "a")
    assert table.iso_dates(own, "a").to_pylist() == words


def test_points_separate_thousands_beside_decimal_commas(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a;b\n1.162;2,5\n89.999;3\n")
    assert table.read(path).numbers("a").tolist() == [1162, 89999]
    path.write_text("a;b\n1.162;2\n89.999;3\n")
    own = table.read(path)
    assert own.numbers("a").tolist() == [1.162, 89.999]
    assert table.are_like_thousands(own, "a")
    assert not table.are_like_thousands(own, "b")


def test_negative_money_of_spreadsheets(tmp_path):
    own = column(tmp_path, "($11,692.41)", "$1,000", "(5)")
    assert own.numbers("a").tolist() == [-11692.41, 1000, -5]


EXPECTED = {"a": ["1", "Müller, x"], "b": ["é", "3"]}
TEXT = 'a,b\n1,é\n"Müller, x",3\n'


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode(),
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.encode("cp1252"),
        TEXT.encode("utf-16"),
        b"\xfe\xff" + TEXT.encode("utf-16-be"),
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", "\r").encode(),
        TEXT.replace("\n", "\n\n").encode(),
        b"\n\n" + TEXT.encode().removesuffix(b"\n"),
        b'sep=;\r\na;b\r\n1;\xc3\xa9\r\n"M\xc3\xbcller, x";3\r\n',
        b'\xef\xbb\xbfsep=;\na;b\n1;\xc3\xa9\n"M\xc3\xbcller, x";3\n',
        ' a , b\n1, é\n"Müller, x" ,3\n'.encode(),
        'a, "b"\n1, "é"\n"Müller, x", "3"\n'.encode(),
        'a,b,\n1,é,\n"Müller, x",3,\n'.encode(),
        'a,b\n1,é,\n"Müller, x",3,,\n'.encode(),
        "a\tb\n1\té\nMüller, x\t3\n".encode(),
    ],
)
def test_the_same_rows_in_any_encoding_and_with_any_ends(tmp_path, content):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    assert cells(table.read(path)) == EXPECTED
    assert [title for title in table.header(path) if title] == ["a", "b"]


def test_other_encodings_are_said(tmp_path):
    (note,) = read(tmp_path, TEXT.encode("cp1252")).notes
    assert "Windows-1252" in note
    (note,) = read(tmp_path, TEXT.encode("utf-16")).notes
    assert "UTF-16" in note


@pytest.mark.parametrize("end", [b"x", b"\x00\xd8a\x00"])
def test_a_broken_end_of_utf16_is_text(tmp_path, end):
    content = "a,b\n1,2\n".encode("utf-16") + end
    assert cells(read(tmp_path, content))["a"][0] == "1"


def test_a_long_header_is_not_cut_in_a_character(tmp_path):
    lines = "é,b\n" + "é,1\n" * 20_000
    read(tmp_path, "x" * (len(lines.encode()) % 2) + lines)
    assert table.header(tmp_path / "rows.csv")[0].endswith("é")


def test_line_breaks_and_quotes_in_cells(tmp_path):
    own = read(tmp_path, 'a,b\n"x\ny",1\n"a ""b"" c",2\nx"y,3\n')
    assert cells(own) == {"a": ["x\ny", 'a "b" c', 'x"y'], "b": ["1", "2", "3"]}


def test_bare_quotes_between_tabs_are_text(tmp_path):
    own = read(tmp_path, 'a\tb\n"x\t1\ny "z"\t2\n', "rows.tsv")
    assert cells(own) == {"a": ['"x', 'y "z"'], "b": ["1", "2"]}
    own = read(tmp_path, 'a\tb\n"x\ty"\t1\n"z"\t2\n', "rows.tsv")
    assert cells(own)["a"] == ["x\ty", "z"]


def test_short_rows_have_gaps(tmp_path):
    own = read(tmp_path, "a,b,c\n1,2\n3,4,5\n6\n")
    assert cells(own) == {"a": ["1", "3", "6"], "b": ["2", "4", ""], "c": ["", "5", ""]}


def test_columns_without_names(tmp_path):
    assert [*read(tmp_path, ",a\n0,1\n1,2\n").columns] == ["", "a"]
    assert [*read(tmp_path, "a,,b\n0,,1\n").columns] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,a\n1,2\n", "several columns 'a'"),
        (" a,a \n1,2\n", "several columns 'a'"),
        ("a,b\n1,2\n3,4,5\n", "row 3 has 3 cells, but the first line names 2"),
        ('a,b\n1,2\n"x,2\n', "line 3: .*quotes"),
        ("a,b\n", "has no rows"),
        ("", "has no rows"),
        ("\n\n", "has no rows"),
        (b"PK\x03\x04" + bytes(99), "is not a text file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "is not a text file"),
        (bytes(range(256)) * 9, "is not a text file"),
    ],
)
def test_what_is_no_table(tmp_path, content, message):
    with pytest.raises(UsageError, match=message):
        read(tmp_path, content)


@pytest.mark.parametrize(
    "name", ["rows.csv.gz", "rows.parquet", "rows.feather", "rows.jsonl.gz"]
)
def test_damaged_files(tmp_path, name):
    content = gzip.compress(np.random.default_rng(0).bytes(999))
    path = tmp_path / name
    path.write_bytes(content[:500] + bytes(500))
    for reader in (table.read, table.header):
        with pytest.raises(UsageError, match="cannot be read|not a text file"):
            reader(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [("rows.csv.gz", "a,b\n1,x\n2,y\n"), ("rows.tsv.gz", "a\tb\n1\tx\n2\ty\n")],
)
def test_compressed_files(tmp_path, name, content):
    own = read(tmp_path, gzip.compress(content.encode()), name)
    assert cells(own) == {"a": ["1", "2"], "b": ["x", "y"]}
    assert table.header(tmp_path / name) == ["a", "b"]


def test_the_beginning_of_a_compressed_file_is_no_table(tmp_path):
    content = gzip.compress(b"a,b\n" + np.random.default_rng(0).bytes(9999))
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path, content[:3000], "rows.csv.gz")
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path, content[:40] + bytes(99) + content[139:], "rows.csv.gz")


DAY = datetime.datetime(2020, 1, 2)
TIME = datetime.datetime(2020, 1, 2, 3, 4, 5)
ARROW = {
    "int": ([1, None], {}, ["1", ""], [1, NAN]),
    "uint64": ([2**63, 1], {"type": pa.uint64()}, [str(2**63), "1"], [2.0**63, 1]),
    "bool": ([True, None], {}, ["True", ""], None),
    "float": ([1.0, None, 2.5], {}, ["1", "", "2.5"], [1, NAN, 2.5]),
    "whole": ([1.0, None, 3.0], {}, ["1", "", "3"], [1, NAN, 3]),
    "large": ([1.0, 1e300], {}, ["1", "1e+300"], [1, 1e300]),
    "decimal": ([decimal.Decimal("1.10"), None], {}, ["1.10", ""], [1.1, NAN]),
    "date": ([DAY.date(), None], {}, ["2020-01-02", ""], None),
    "days": ([DAY], {}, ["2020-01-02"], None),
    "time": ([TIME, None], {}, ["2020-01-02 03:04:05", ""], None),
    "zone": (
        [TIME],
        {"type": pa.timestamp("us", "Europe/Berlin")},
        ["2020-01-02 03:04:05"],
        None,
    ),
    "large string": (["x ", None], {"type": pa.large_string()}, ["x", ""], None),
    "bytes": ([b"x", b"\xff"], {}, ["x", "\ufffd"], None),
    "null": ([None, None], {}, ["", ""], [NAN, NAN]),
}


@pytest.mark.parametrize("kind", ARROW)
def test_types_of_arrow(tmp_path, kind):
    values, options, words, numbers = ARROW[kind]
    own = arrow(values, **options)
    pa.parquet.write_table(pa.table(own.columns), tmp_path / "rows.parquet")
    for same in (own, table.read(tmp_path / "rows.parquet")):
        assert table.texts(same.columns["a"]).to_pylist() == words
        if numbers is None:
            assert same.numbers("a") is None
        else:
            np.testing.assert_array_equal(same.numbers("a"), numbers)
    is_date = kind in ("date", "days", "time", "zone")
    assert own.date_order("a") == ("ymd" if is_date else None)


def test_encoded_columns_are_plain(tmp_path):
    encoded = pa.array(["x ", None, "y"]).dictionary_encode()
    numbers = pa.RunEndEncodedArray.from_arrays([2, 3], pa.array([1, 2]))
    own = table.from_arrow(pa.table({"a": encoded, "b": numbers}), "rows")
    assert cells(own) == {"a": ["x", None, "y"], "b": [1, 1, 2]}
    data = pa.table({"a": encoded, "b": [1, 2, 3]})
    pa.feather.write_feather(data, tmp_path / "rows.feather")
    own = table.read(tmp_path / "rows.feather")
    assert cells(own) == {"a": ["x", None, "y"], "b": [1, 2, 3]}
    assert table.header(tmp_path / "rows.feather") == ["a", "b"]


def test_lists_of_one_length_are_lists():
    own = arrow([[1.0, 2.0], [3.0, 4.0]], type=pa.list_(pa.float32(), 2))
    assert table.lists(own.columns["a"])


@pytest.mark.parametrize("values", [[{"x": 1}], [{"x": {"y": 1}}]])
def test_nested_columns_are_refused(values):
    with pytest.raises(UsageError, match="'a' contains struct.*flatten"):
        arrow(values)


FRAMES = {
    "Int64": ([1, None], {"dtype": "Int64"}, ["1", ""], [1, NAN]),
    "boolean": ([True, None], {"dtype": "boolean"}, ["True", ""], None),
    "category": (["x", None], {"dtype": "category"}, ["x", ""], None),
    "numbers of a category": ([1, 2], {"dtype": "category"}, ["1", "2"], [1, 2]),
    "string": (["x", pd.NA], {"dtype": "string"}, ["x", ""], None),
    "mixed": ([1, "x", None], {"dtype": object}, ["1", "x", ""], None),
    "large": ([2**70, 1], {"dtype": object}, [str(2**70), "1"], [2.0**70, 1]),
    "half": (["\ud800", "x"], {"dtype": object}, ["\ufffd", "x"], None),
    "float": ([1.0, NAN], {}, ["1", ""], [1, NAN]),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_types_of_pandas(kind):
    values, options, words, numbers = FRAMES[kind]
    own = pandas(values, **options)
    assert table.texts(own.columns["a"]).to_pylist() == words
    if numbers is None:
        assert own.numbers("a") is None
    else:
        np.testing.assert_array_equal(own.numbers("a"), numbers)
    assert (own.booleans("a") is not None) == (kind == "boolean")


def test_rows_of_pandas_have_the_numbers_of_the_index():
    frame = pd.DataFrame({"a": [1, 2]}, index=[7, 3])
    assert [*table.from_object(frame, "x").row_numbers] == [7, 3]
    for index in ([7, 7], [True, False], ["p", "q"], [2**70, 1]):
        frame.index = index
        assert [*table.from_object(frame, "x").row_numbers] == [0, 1]


def test_titles_of_pandas_that_are_written_alike():
    with pytest.raises(UsageError, match="several columns '1'"):
        table.from_object(pd.DataFrame([[1, 2]], columns=[1, "1"]), "x")


def test_json_lines(tmp_path):
    lines = '{"a": 1, "b": "x "}\n\n{"b": null, "a": 2.5}\n'
    own = read(tmp_path, lines, "rows.jsonl")
    assert cells(own) == {"a": [1.0, 2.5], "b": ["x", None]}
    assert [*own.row_numbers] == [1, 3]
    assert table.header(tmp_path / "rows.jsonl") == ["a", "b"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", '"x"', "[2]"], ["1", "x", "[2]"]),
        ([str(10**30), "1"], [str(10**30), "1"]),
        (['"\\ud800"', '"x"'], ["\ufffd", "x"]),
        (["true", "null"], [True, None]),
    ],
)
def test_values_of_json(tmp_path, values, expected):
    lines = "".join(f'{{"a": {value}}}\n' for value in values)
    assert cells(read(tmp_path, lines, "rows.jsonl"))["a"] == expected


def test_large_whole_numbers_keep_their_differences(tmp_path):
    times = [1_700_000_000_000 + step for step in range(4)]
    own = column(tmp_path, *map(str, times))
    assert np.diff(own.numbers("a")).tolist() == [1, 1, 1]
    assert np.diff(arrow(times).numbers("a")).tolist() == [1, 1, 1]


def test_splits_are_joined_by_the_names_of_their_columns(tmp_path):
    train = read(tmp_path, "a,b\n1,x\n", "train.csv")
    test = read(tmp_path, "B,a\ny,2\n", "test.csv")
    own = table.join({"train": train, "test": test})
    assert cells(own) == {
        "a": ["1", "2"],
        "b": ["x", "y"],
        "(split)": ["train", "test"],
    }
    with pytest.raises(UsageError, match="has no column 'b'"):
        table.join({"train": train, "test": read(tmp_path, "a\n1\n")})
