"""Tables of files or numbers with any target, in CSV and JSON lines."""

import json

import numpy as np
import pytest
from PIL import Image
from toy_problem import read

from pipeline.config import command_line, registry
from pipeline.data import dataset
from pipeline.data.seeds import stable_hash
from pipeline.utils.errors import UsageError

FILES = ("a", "b", "c")


@pytest.fixture
def root(workplace):
    """Images, masks and arrays named a, b and c in the folder `files`."""
    (workplace / "files").mkdir()
    for number, name in enumerate(FILES):
        image = Image.new("RGB", (4, 4), (number, 0, 0))
        image.save(workplace / f"files/{name}.png")
        Image.new("L", (4, 4), number).save(workplace / f"files/{name}_mask.png")
        np.save(workplace / f"files/{name}.npy", np.full((3, 2), number))
    return workplace


@pytest.fixture
def table(root):
    """Opens a table: CSV text, or the objects of the lines of a JSON file."""

    def open_table(content, **options):
        path = root / ("table.csv" if isinstance(content, str) else "table.jsonl")
        if not isinstance(content, str):
            lines = [x if isinstance(x, str) else json.dumps(x) for x in content]
            content = "\n".join(lines)
        path.write_text(content, errors="surrogateescape")
        registry.check("sources", "table", {"path": path, **options}, "{}")
        return registry.call("sources", "table", {"path": path, **options})

    return open_table


IRIS = "Sepal Length,width,species\n5.1,3,setosa\n4.9,2,virginica\n6,,setosa\n"
IRIS_LINES = [
    {"Sepal Length": 5.1, "width": 3, "species": "setosa"},
    {"Sepal Length": 4.9, "width": 2, "species": "virginica"},
    {"Sepal Length": 6, "width": None, "species": "setosa"},
]


@pytest.mark.parametrize("content", [IRIS, IRIS_LINES], ids=["csv", "jsonl"])
def test_the_columns_of_a_table_are_inputs(table, content):
    source = table(content)
    assert source.info.class_names == ("setosa", "virginica")
    names = [(column.name, column.kind) for column in source.info.columns]
    assert names == [("Sepal Length", "number"), ("width", "number")]
    examples = read(source)
    numbers = np.array([[5.1, 3], [4.9, 2], [6, np.nan]])
    np.testing.assert_array_equal([e["numbers"] for e in examples], numbers)
    assert examples[0]["numbers"].dtype == np.float64
    assert [int(e["label"]) for e in examples] == [0, 1, 0]
    first = 2 if content is IRIS else 1
    name = "table.csv" if content is IRIS else "table.jsonl"
    places = [source.location(int(e["id"])) for e in examples]
    noun = "row" if content is IRIS else "line"
    assert places == [f"{noun} {first + n} of {name}" for n in range(3)]
    (note,) = source.info.notes
    key = "column" if content is IRIS else "key"
    assert f"inputs are 2 {key}s, Sepal Length, width; label is the {key} 'spe" in note


def test_every_kind_of_column_is_recognized(table):
    words = ["red", "blue", "", "red"]
    days = ["2024-01-31", "2024-02-01 12:30", "", "2023-12-24"]
    texts = ["a very good film", "not good at all", "", "bad and far too long"]
    rows = ["size,is_new,color,day,note,label"]
    for n in range(4):
        cells = [n * 0.5, n % 2 == 0, words[n], days[n], texts[n], "yes" if n else "no"]
        rows.append(",".join(map(str, cells)))
    source = table("\n".join(rows))
    kinds = {column.name: column.kind for column in source.info.columns}
    assert kinds == {
        "size": "number",
        "is_new": "boolean",
        "color": "category",
        "day": "date",
        "note": "text",
    }
    first = read(source)[0]
    assert first["numbers"].tolist() == [0, 1]
    assert first["strings"].tolist() == [b"red", b"2024-01-31", b"a very good film"]


def test_columns_that_name_rows_splits_and_groups_are_no_inputs(table):
    source = table(
        ",id,a,group,split,price\n"
        "0,10,1,u,train,3.5\n1,11,2,v,train,4\n2,12,3,u,train,5\n3,13,4,w,test,6\n"
    )
    assert source.info.splits == {"train": 3, "test": 1}
    assert [column.name for column in source.info.columns] == ["a"]
    assert source.info.target_name == "price"
    columns = source.columns("train")
    np.testing.assert_array_equal(columns["target"], np.float32([3.5, 4, 5]))
    np.testing.assert_array_equal(
        columns["group"], [stable_hash(text) for text in (b"u", b"v", b"u")]
    )
    assert source.info.notes[0].endswith("groups of 'group' stay together")
    assert "left out: '' and 'id' (it identifies the rows)" in source.info.notes[1]


LEFT_OUT = {
    "one value": ("a,b,label\n1,7,x\n2,7,y\n", "'b' (one value)"),
    "no value": ("a,b,label\n1,,x\n2,,y\n", "'b' (no values)"),
    "other words": (
        "a,name,label\n" + "".join(f"{n},w{n},{n % 2}\n" for n in range(9)),
        "'name' (it identifies the rows)",
    ),
    "numbers of rows": (
        "a,UserId,label\n" + "".join(f"{n % 3},{n},{n % 2}\n" for n in range(9)),
        "'UserId' (it identifies the rows)",
    ),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_columns_that_say_nothing_are_left_out_with_a_note(table, case):
    text, note = LEFT_OUT[case]
    source = table(text)
    assert [column.name for column in source.info.columns] == ["a"]
    assert any(note in line for line in source.info.notes)


TARGETS = {
    "whole numbers of a column for labels": ("a,target\n1,0\n2,1\n", {}, "label"),
    "numbers with a decimal point": ("a,target\n1,151.0\n2,75.0\n", {}, "target"),
    "numbers that are not whole": ("a,class\n1,0.5\n2,1\n", {}, "target"),
    "text in a column for numbers": ("a,y\n1,no\n2,yes\n", {}, "label"),
    "whole numbers of a column for numbers": ("a,y\n1,3\n2,4\n", {}, "target"),
    "0 and 1 in a column for numbers": ("a,y\n1,0\n2,1\n", {}, "label"),
    "money": ('a,price\n1,"$1,200"\n2,$90.50\n', {}, "target"),
    "a column named as target": ("a,class\n1,0\n2,1\n", {"target": "Class"}, "target"),
    "a column named as label": ("a,y\n1,0.5\n2,1\n", {"label": "y"}, "label"),
    "labels before numbers": ("a,price,label\n1,2,x\n2,3,y\n", {}, "label"),
    "several labels": ("a,tags\n1,x|y\n2,\n", {}, "labels"),
    "columns of 0 and 1": ("a,x,y\n1,1,0\n2,1,1\n", {"labels": "x,y"}, "labels"),
}


@pytest.mark.parametrize("case", TARGETS)
def test_which_target_a_column_holds(table, case):
    text, options, field = TARGETS[case]
    source = table(text, **options)
    assert source.info.fields.keys() == {"id", "numbers", "strings", field}
    dtypes = {"label": "int64", "target": "float32", "labels": "uint8"}
    assert source.info.fields[field].dtype.name == dtypes[field]
    assert f"{field} is the column" in source.info.notes[0]


def test_a_column_that_equals_the_target_is_a_leak(table):
    notes = table("a,b,price\n1,3.5,3.5\n2,4,4\n").info.notes
    assert any("'b' tells 'price', which is to be predicted" in note for note in notes)


def test_a_column_with_a_value_for_each_class_is_a_leak(table):
    rows = [f"{n % 7},{n % 3},{'yn'[n // 2 % 2]},{n // 2 % 2}\n" for n in range(40)]
    notes = table("a,b,alive,label\n" + "".join(rows)).info.notes
    leaks = [note for note in notes if "which is to be predicted" in note]
    assert len(leaks) == 1 and "'alive' tells 'label'" in leaks[0]


def test_rows_are_counted_by_a_number_with_any_name(table):
    rows = [f"{10_001 + n},{1900 + n},{n % 7},{n % 2}\n" for n in range(150)]
    source = table("Kunde,year,a,label\n" + "".join(rows))
    assert [column.name for column in source.info.columns] == ["year", "a"]
    assert any("left out: 'Kunde'" in note for note in source.info.notes)


def test_files_of_source_code_are_no_examples(table):
    rows = [f"src/{n % 9}.c,{n % 7},{n % 2}\n" for n in range(40)]
    source = table("file,loc,label\n" + "".join(rows))
    assert [column.name for column in source.info.columns] == ["file", "loc"]


def test_what_could_mean_something_else_is_said(table):
    rows = [
        f"{n % 9 + 1:02}/01/2024;{n % 5 + 1}.{n + 100};{n % 2}\n" for n in range(40)
    ]
    notes = table("day;count;label\n" + "".join(rows)).info.notes
    assert any("'day' are read as day/month/year" in note for note in notes)
    assert any("1.234 in 'count' is read as a little more" in note for note in notes)


def test_numbers_that_are_classes_are_said_with_the_alternative(table):
    note = table("a,Quality,class\n1,2,5\n2,3,7\n").info.notes[0]
    assert note.endswith("--source.target class predicts its numbers, not classes")


@pytest.mark.parametrize(
    "content",
    [
        "file,tags\nfiles/a.png,wet|big\nfiles/b.png,\nfiles/c.png,big; wet ;old\n",
        "file,tags\nfiles/a.png,\"wet, big\"\nfiles/b.png,\nfiles/c.png,\"['big', 'wet',"
        " 'old']\"\n",
        [
            {"file": "files/a.png", "labels": ["wet", "big"]},
            {"file": "files/b.png", "labels": []},
            {"file": "files/c.png", "labels": ["big", "wet", "old"]},
        ],
    ],
    ids=["bars", "commas", "jsonl"],
)
def test_several_labels(table, content):
    source = table(content)
    assert source.info.class_names == ("big", "old", "wet")
    labels = source.columns("train")["labels"]
    np.testing.assert_array_equal(labels, [[1, 0, 1], [0, 0, 0], [1, 1, 1]])
    assert labels.dtype == np.uint8


def test_class_names_set_the_order_of_the_classes(table):
    text = "image,label\nfiles/a.png,low\nfiles/b.png,high\n"
    source = table(text, class_names=("low", "high", "top"))
    assert source.info.class_names == ("low", "high", "top")
    np.testing.assert_array_equal(source.columns("train")["label"], [0, 1])
    with pytest.raises(UsageError, match="'low'.*classes"):
        table(text, class_names=("high", "top"))


def test_masks_are_files(table, root):
    rows = [{"image": f"files/{n}.png", "mask": f"files/{n}_mask.png"} for n in FILES]
    rows[2]["mask"] = "files/gone.png"
    source = table(rows, class_names=("sky", "ground"))
    assert source.info.class_names == ("sky", "ground")
    examples = read(source)
    assert [source.location(int(e["id"])) for e in examples] == [
        "files/a.png",
        "files/b.png",
    ]
    for name, example in zip("ab", examples, strict=True):
        assert example["mask"] == (root / f"files/{name}_mask.png").read_bytes()
    assert "in 1 of 3 lines, such as line 3" in source.info.notes[0]


def test_files_are_those_of_the_input_that_reads_them(table, root):
    source = table("file,label\nfiles/a.npy,x\nfiles/b.npy,y\n")
    assert source.info.fields.keys() == {"id", "label", "features"}
    assert read(source)[1]["features"] == (root / "files/b.npy").read_bytes()
    assert "inputs are features files" in source.info.notes[0]
    moved = table([{"features": "x/c.npy", "label": 1}, {"features": "b", "label": 2}])
    assert "found by the last parts" in moved.info.notes[0]
    assert [moved.location(int(e["id"])) for e in read(moved)] == [
        "files/c.npy",
        "files/b.npy",
    ]
    own = table(
        "file,label\nfiles/a.npy,x\nfiles/b.npy,y\n", field="series", suffixes=(".npy",)
    )
    assert own.info.fields.keys() == {"id", "label", "series"}


def test_groups_by_a_column(table):
    text = "image,label,group\nfiles/a.png,x,1\nfiles/b.png,y,2\nfiles/c.png,y,1\n"
    assert "group" not in table(text).info.fields  # only if it is asked for
    groups = table(text, group="Group").columns("train")["group"]
    np.testing.assert_array_equal(groups, [stable_hash(x) for x in (b"1", b"2", b"1")])


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([[1, 2], [3, 4]], np.int64),
        ([[1, 2.5], [3, 4]], np.float32),
        ([[[1, 2], [3, 4], [5, 6]]] * 2, np.int64),
    ],
)
def test_lists_of_numbers_are_features(table, values, dtype):
    rows = [{"features": value, "label": n} for n, value in enumerate(values)]
    source = table(rows)
    features = np.stack([example["features"] for example in read(source)])
    np.testing.assert_array_equal(features, values)
    assert features.dtype == dtype and source.info.feature_names is None


def test_lists_of_numbers_to_predict(table):
    rows = [{"features": [1, 2], "target": [n, 2.5]} for n in range(3)]
    source = table(rows)
    assert source.info.fields["target"].shape == (2,)
    rows[1]["target"] = [1]
    with pytest.raises(UsageError, match=r"line 2: 'target' has the shape \(1,\), but"):
        table(rows)


IMAGE = {"image": "files/a.png", "label": "x"}
REFUSED = {
    # JSON lines
    "an empty file": ([], "table.jsonl has no lines; add a JSON object"),
    "broken JSON": ([IMAGE, "", '{"image": }'], "line 3: Expecting value at column 11"),
    "not an object": (["[1, 2]"], r"line 1 .*a JSON object, .*; got \[1, 2\]"),
    "a missing key": ([IMAGE, {"image": "b"}], "line 2 has no key 'label', which line"),
    "another key": ([IMAGE, {**IMAGE, "x": 1}], "line 2 has the key 'x', which line 1"),
    "no files": (
        [{"image": "gone.png", "label": "x"}],
        r"in 1 of 1 lines, .*gone.png'\); no line is",
    ),
    "different shapes": (
        [{"features": [1, 2], "label": 0}, {"features": [1], "label": 0}],
        r"line 2: 'features' .*\(1,\), but \(2,\)",
    ),
    "lists of different lengths": (
        [{"features": [[1, 2], [1]], "label": 0}],
        "line 1: 'features' .*lists of equal lengths",
    ),
    "a gap in a list": (
        [{"features": [1, None], "label": 0}],
        "line 1: 'features' must be a list of numbers",
    ),
    "NaN": ([{"features": [float("nan")], "label": 0}], "line 1: .* must be finite"),
    # CSV
    "nothing": ("", "has no rows"),
    "no rows": ("path,label\n", "has no rows"),
    "an open quote": (
        'path,label\nfiles/a.png,a\n\nfiles/b.png,"b\nfiles/c.png,a\n',
        "line 4: unexpected end",
    ),
    "a quote that ends too early": (
        'path,label\nfiles/a.png,"5 inch\nfiles/b.png,"b\n',
        "line 2: ',' expected",
    ),
    "an open quote at a text": (
        'text,label\n"a,x\nb,y\n',
        "line 2: unexpected end of data; correct",
    ),
    "too many cells": ("a,b,label\n1,2,x\n1,5,2,y\n", "row 3 has 4 cells, .*3 columns"),
    "too many cells at a text": (
        "text,label\na,x,z\n",
        "row 2 has 3 cells, but the first line names 2",
    ),
    "a column twice": ("a,a,label\n1,2,x\n", "has several columns 'a'; rename all but"),
    "nothing to predict": (
        "a,b\n1,2\n",
        "which column is to be predicted. It has a, b; .*--target b",
    ),
    "nothing to predict of a file": (
        "path,count\nfiles/a.png,3\n",
        "which column is to be predicted",
    ),
    "nothing to predict of a text": (
        "text,note\na,x\n",
        "which column is to be predicted. It has note; write .* --target note",
    ),
    "an unknown split": (
        "path,label,split\nfiles/a.png,a,dev\n",
        "row 2: .*'dev' is not one of train, val",
    ),
    "no training examples": (
        "a,label,split\n1,x,test\n2,y,test\n",
        "no row is for training",
    ),
    "an unknown label": (
        "a,tags,split\n1,x,train\n2,y,test\n",
        "'y' is not one of the classes",
    ),
    "a file of another program": ("PK\x03\x04abc", "is not a text file; save it as"),
    "one text among numbers to predict": (
        "a,price\n1,2\n2,3\n3,4\n4,5 or so\n",
        "row 5: '5 or so' in the column 'price' is not a number; correct it, or write",
    ),
    "an infinite number to predict": (
        "a,price\n1,2\n2,1e99\n",
        "row 3: '1e99' .* is not a finite number",
    ),
    "nothing to predict from": ("a,label\n1,x\n1,y\n", "from: 'a' .one value."),
    "no texts": ("text,label\n,x\n,y\n", "nothing to predict from: 'text' .no values."),
    "files that do not exist": (
        "path,label\nx/7.png,a\nx/8.png,b\n",
        "in 2 of 2 rows, .*no row is left for training",
    ),
    "files twice": (
        "image,price\nfiles/a.png,1\nfiles/a.png,2\n",
        "row 3: files/a.png .*labels or splits",
    ),
    "files of two classes": (
        "path,label\nfiles/a.png,a\nfiles/a.png,b\n",
        "row 3: .*a.png occurs twice, with diff",
    ),
    "files by two paths": (
        "path,label\nfiles/a.png,a\n./files/a.png,b\n",
        "row 3: ./files/a.png occurs twice, with",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_named_in_one_line(table, case):
    content, message = REFUSED[case]
    with pytest.raises(UsageError, match=message) as caught:
        table(content)
    assert "table." in str(caught.value) and "\n" not in str(caught.value)


def test_options_that_contradict_each_other(table):
    with pytest.raises(UsageError, match="--source.label and --source.lab"):
        table("a,b,c\n1,x,y\n", label="b", labels="c")
    with pytest.raises(UsageError, match="'b' must be 0 or 1 in each row"):
        table("a,b,c\n1,2,0\n", labels="b,c")
    with pytest.raises(UsageError, match="no column 'd'; it has a, b, c; name"):
        table("a,b,c\n1,x,y\n", label="d")
    with pytest.raises(UsageError, match="no column 'body'; it has text, label"):
        table("text,label\na,x\n", column="body")
    with pytest.raises(UsageError, match="row 3: the column 'who' has no value"):
        table("image,label,who\nfiles/a.png,x,1\nfiles/b.png,y,\n", group="who")


def test_the_target_of_the_task_names_no_column(workplace):
    """`target` is an option of tables, but not the one of arrays."""
    (workplace / "houses.csv").write_text("rooms,price\n1,2.5\n2,3.5\n")
    config = command_line.configure(["houses.csv", "--task.target", "number"])
    source = dataset.open_source(config)
    assert set(source.info.fields) == {"id", "numbers", "strings", "target"}
    assert "target_shape" not in dataset.create_task(config, source.info).metadata


def test_infinity_is_refused_with_its_row(table):
    for column in ("x", "target"):
        cells = ["1.5,2.5,a"] * 3 + ["inf,2,b" if column == "x" else "1,-inf,b"]
        message = f"row 5: '-?inf' in the column '{column}' is not a finite number"
        with pytest.raises(UsageError, match=message):
            table("\n".join(["x,target,z", *cells]))


def test_numbers_in_two_forms_are_refused_with_their_row(table):
    with pytest.raises(UsageError, match="row 2: '1,234.5' in the column 'price'"):
        table('x,price\n1,"1,234.5"\n2,"1,5"\n', target="price")


def test_a_word_among_numbers_is_why_a_column_is_left_out(table):
    rows = [f"{number},{number % 3},{'ab'[number % 2]}" for number in range(60)]
    rows[40] = "err,1,a"
    source = table("\n".join(["x,z,label", *rows]))
    assert [column.name for column in source.info.columns] == ["z"]
    (note,) = [note for note in source.info.notes if "left out" in note]
    assert "'x' ('err' in row 42 is not a number; correct it)" in note


def test_a_class_called_na_is_no_number_among_words(table):
    rows = [f"{number},{('NA', 'EU')[number % 2]}" for number in range(8)]
    source = table("\n".join(["x,label", *rows]))
    assert source.info.class_names == ("EU", "NA")
    assert any("'NA' in the column 'label' is a class" in n for n in source.info.notes)
    assert not any("unlike the others" in note for note in source.info.notes)


def test_the_column_of_splits_in_upper_case(table):
    source = table("x,label,Split\n1,a,train\n2,b,TRAIN\n3,a,test\n")
    assert source.info.splits == {"train": 2, "test": 1}
