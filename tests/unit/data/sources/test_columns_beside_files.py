"""Columns of a table as inputs beside its files or texts (`--source.columns`)."""

import os

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from toy_problem import read

from pipeline.config import registry
from pipeline.data import detect, in_memory
from pipeline.data.raw_split import RawSplit
from pipeline.tasks.supervised import supervised
from pipeline.utils.errors import UsageError

HEAD = "image,age,sex,id,diagnosis"
ROWS = [
    ("a.png", "31", "f", "p1", "sick"),
    ("b.png", "", "m", "p2", "healthy"),
    ("c.png", "57.5", "f", "p3", "sick"),
    ("d.png", "44", "m", "p4", "healthy"),
]


@pytest.fixture
def table(workplace):
    for number, (name, *_) in enumerate(ROWS):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(workplace / name)

    def open_table(head=HEAD, rows=ROWS, **options):
        path = workplace / "t.csv"
        path.write_text("\n".join([head, *(",".join(row) for row in rows)]))
        options = {"path": path, "label": "diagnosis", **options}
        return registry.call("sources", "table", options)

    return open_table


def test_named_columns_are_fields_beside_the_file(table):
    source = table(columns=("sex", "Age"))
    assert source.info.input_name == "image"
    kinds = [(column.name, column.kind) for column in source.info.columns]
    assert kinds == [("sex", "category"), ("age", "number")]
    examples = read(source)
    pixels = [int(np.array(Image.open(name))[0, 0, 0]) for name, *_ in ROWS]
    assert pixels == [0, 1, 2, 3]
    for number, example in enumerate(examples):
        assert example["image"].startswith(b"\x89PNG")
        assert source.location(int(example["id"])) == ROWS[number][0]
    numbers = [float(example["numbers"][0]) for example in examples]
    np.testing.assert_array_equal(numbers, [31, np.nan, 57.5, 44])
    assert [e["strings"].tolist() for e in examples] == [[b"f"], [b"m"]] * 2
    used, others = source.info.notes
    assert "inputs are image files and 2 columns, sex, age; label" in used
    assert others.endswith(
        "t.csv: left out: 'id'; --source.columns sex age id makes them inputs, too"
    )


def test_names_may_have_commas_between_them_and_repeat(table):
    columns = table(columns=("age,sex", "Age")).info.columns
    assert [column.name for column in columns] == ["age", "sex"]


def test_without_names_no_column_is_read(table):
    source = table()
    assert source.info.columns is None
    assert set(source.info.fields) == {"id", "label", "image"}
    (_, note) = source.info.notes
    assert note.endswith("--source.columns age sex id makes them inputs, too")


def test_an_identifier_that_is_named_is_a_column(table):
    (column,) = table(columns=("id",)).info.columns
    assert (column.name, column.kind) == ("id", "category")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ("weight",)}, "t.csv has no column 'weight'; it has image, age"),
        ({"columns": ("diagnosis",)}, "'diagnosis' cannot be an input: it has another"),
        ({"columns": ("age",), "group": "age"}, "'age' cannot be an input: it has"),
        (
            {"columns": ("age",), "label": None, "mask": "image", "image": "sex"},
            "only classes, labels and numbers can be predicted",
        ),
    ],
)
def test_what_cannot_be_an_input_is_named(table, options, message):
    with pytest.raises(UsageError, match=message):
        table(**options)


def test_a_column_of_one_value_is_refused(table):
    rows = [(*row[:2], "f", *row[3:]) for row in ROWS]
    with pytest.raises(UsageError, match="'sex' cannot be an input: one value"):
        table(rows=rows, columns=("sex",))


def test_a_column_like_an_argument_of_requests_is_refused(table):
    source = table("image,images,sex,id,diagnosis", columns=("images",))
    with pytest.raises(UsageError, match=r"images is an argument .* rename the column"):
        supervised(source.info, {"input_options": {"image_size": (4, 4)}})


def test_a_column_that_tells_the_answer_is_named(table):
    letters = "abcdefghijklmnopqrstuvwxyz"
    for letter in letters:
        Image.new("L", (4, 4)).save(f"{letter}.png")
    rows = []
    for number, letter in enumerate(letters):
        prediction = ["sick", "healthy"][number % 2]
        rows.append((f"{letter}.png", str(number), prediction[0], letter, prediction))
    notes = table(rows=rows, columns=("sex", "age")).info.notes
    assert [note for note in notes if "'sex' tells 'diagnosis'" in note]


def test_words_are_learned_without_reading_the_files(table):
    source = table(columns=("age", "sex"))
    for name, *_ in ROWS:  # a file that is read now would raise an error
        os.remove(name)
    columns = source.columns("train")
    split = RawSplit(source, "train", np.arange(4), columns)
    batches = list(split.batches(("numbers", "strings")))
    assert set().union(*batches) == {"id", "numbers", "strings"}
    strings = np.concatenate([batch["strings"] for batch in batches])
    assert strings.tolist() == [[b"f"], [b"m"]] * 2


LONG = "one two three four five six seven eight nine ten"


def test_named_columns_are_beside_a_long_text(table):
    rows = [(f"{LONG} {n}", *row[1:]) for n, row in enumerate(ROWS)]
    source = table("review,age,sex,id,diagnosis", rows, columns=("age", "review"))
    assert source.info.input_name == "review"
    assert [column.name for column in source.info.columns] == ["age"]
    examples = read(source)
    assert (
        examples[2]["text"] == f"{LONG} 2".encode() and examples[2]["numbers"] == 57.5
    )
    assert "the column 'review' and 1 column, age" in source.info.notes[0]


def test_named_columns_are_all_inputs_of_a_table_without_files(table):
    rows = [(f"w{n}", *row[1:]) for n, row in enumerate(ROWS)]
    source = table("room,age,sex,id,diagnosis", rows, columns=("sex",))
    assert [column.name for column in source.info.columns] == ["sex"]
    assert source.info.input_name is None and len(source.info.notes) == 1


def test_a_data_frame_takes_names_of_columns(table):
    table()
    frame = pd.read_csv("t.csv")
    options = {"predict": "diagnosis", "columns": ["age", "sex"]}
    source = in_memory.from_object(frame, **options)
    assert [column.name for column in source.info.columns] == ["age", "sex"]
    assert source.info.fields.keys() >= {"image", "numbers", "strings"}
    with pytest.raises(UsageError, match="columns are names of columns of a table"):
        in_memory.from_object((np.zeros((4, 2)), [0, 1, 0, 1]), columns=("age",))


def test_the_recipe_is_that_of_the_files(table):
    table()
    options = {"path": "t.csv", "label": "diagnosis", "columns": ["age"]}
    assert detect.find_recipe("table", options, None) == "photos"
