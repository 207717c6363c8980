"""Files as inputs: which are found, how tables are read, and which examples are
skipped.
"""

import json
from pathlib import Path

import fake_serving
import numpy as np
import pytest
import served_models
from predict_command import IMAGES
from served_models import WIDTH, png

from pipeline.serving import file_predictions
from pipeline.serving.client import Client
from pipeline.serving.file_predictions import predict
from pipeline.utils import image_formats
from pipeline.utils.errors import UsageError

pytestmark = pytest.mark.usefixtures("no_proxy")


def test_words_stand_for_files_directories_and_patterns(workplace):
    for name in ("g/a.png", "g/sub/b.PNG", "g/.hidden.png", "g/notes.txt", "g/c.HEIC"):
        (workplace / name).parent.mkdir(parents=True, exist_ok=True)
        (workplace / name).touch()
    (workplace / "elsewhere").mkdir()
    (workplace / "elsewhere/far.png").touch()
    assert file_predictions.find(["g"], image_formats.SUFFIXES) == [
        "g/a.png",
        "g/sub/b.PNG",
    ]
    for name in ("g/@eaDir/a.png", "g/sub/$RECYCLE.BIN/b.png", "g/__MACOSX/c.png"):
        (workplace / name).parent.mkdir(parents=True)
        (workplace / name).touch()
    assert file_predictions.find(["g"], image_formats.SUFFIXES) == [
        "g/a.png",
        "g/sub/b.PNG",
    ]
    assert file_predictions.find(["g/**/*.png"], image_formats.SUFFIXES) == ["g/a.png"]
    for word in ("g/@eaDir", "g/@eaDir/*.png"):
        assert file_predictions.find([word], image_formats.SUFFIXES) == [
            "g/@eaDir/a.png"
        ]
    words = ("g/sub/**", "elsewhere/*.png", "gone.png")
    names = ["g/sub/b.PNG", "elsewhere/far.png", "gone.png"]
    assert file_predictions.find(words, image_formats.SUFFIXES) == names
    errors = [
        item.error for item in file_predictions.contents(["gone.png", "*.gone", "g"])
    ]
    assert errors == ["No such file or directory"] * 2 + ["Is a directory"]


TABLES = {
    "empty.npy": b"",
    "cut.npy": b"\x93NUMPY\1\0v\0{'descr': '<f4', 'fortran_order",
    "empty.csv": b"",
    "header.csv": b"a,b,c\n",
    "word.csv": b"1,2,3\n1,x,3\n",
    "short.csv": b"1,2\n3,4\n",
}


def test_tables_that_cannot_be_read_are_reported(workplace):
    np.save("flat.npy", np.zeros(3))
    np.save("objects.npy", np.array([[1, "x", None]], object), allow_pickle=True)
    for name, raw in TABLES.items():
        (workplace / name).write_bytes(raw)
    names = [*TABLES, "flat.npy", "objects.npy"]
    errors = {
        item.name["file"]: item.error for item in file_predictions.rows(names, (WIDTH,))
    }
    assert errors.pop("word.csv") == "'x' is not a number"
    assert errors.pop("short.csv") == "it has 2 numbers, but the model takes 3"
    for name, error in errors.items():
        assert error and (name.endswith("npy") or "no rows" in error), name
    assert "an array of numbers (rows, features)" in errors["flat.npy"]


NAMES = ["age", "bmi", "s 1"]


@pytest.mark.parametrize(
    ("text", "columns", "found"),
    [
        ("age,bmi,s 1\n1,2,3", NAMES, [[1, 2, 3]]),
        ('"s 1", age , bmi\n1,2,3', NAMES, [[2, 3, 1]]),
        ("age,price,bmi,s 1\n1,9,2,3\n", NAMES, [[1, 2, 3]]),
        ("s 1,age,bmi\n1,2,3", None, [[1, 2, 3]]),
        (
            "age,bmi,s1\n1,2,3",
            NAMES,
            "it has the columns age, bmi, s1, but the model takes age, b",
        ),
        ("0,1\n1,0\n\n2,5", None, [[0, 1], [1, 0], [2, 5]]),
        (
            "0,1,2,3\n5,6,7,8",
            None,
            [[5, 6, 7, 8]],
        ),  # by pandas, for columns without names
    ],
)
def test_headers_order_the_columns_or_are_refused(workplace, text, columns, found):
    (workplace / "a.csv").write_text(text)
    items = list(file_predictions.rows(["a.csv"], (len(found[0]),), columns))
    if isinstance(found, str):
        (item,) = file_predictions.rows(["a.csv"], (3,), columns)
        assert item.error.startswith(found)
    else:
        assert [item.value.tolist() for item in items] == found
        assert [item.name["row"] for item in items] == list(range(len(found)))


def test_a_damaged_file_costs_few_requests(models, workplace):
    backend = fake_serving.Backend(pictures=models / "pictures/1")
    names = [f"{index:02}.png" for index in range(32)]
    for index, name in enumerate(names):
        (workplace / name).write_bytes(
            png(IMAGES[index % 9]) if index != 13 else b"damaged"
        )
    with fake_serving.rest(backend) as address, Client(f"{address}/pictures") as client:
        records = list(predict(client, [*names, "gone.png"]))
    assert [record["file"] for record in records] == [*names, "gone.png"]
    errors = {
        record["file"]: record["error"] for record in records if "error" in record
    }
    assert "JPEG, PNG, GIF, BMP or WebP" in errors.pop("13.png")
    assert errors == {"gone.png": "No such file or directory"}
    assert len(backend.requests) == 1 + 2 * 5, "it is found by halves"


def test_rows_of_tables_are_predicted(models, workplace):
    (workplace / "a.csv").write_text("x,y,z\n1,2,3\n\n4,five,6\n0.1,0,-0e0\nnan,1,1\n")
    np.save("b.npy", np.array([[1, 2, 3], [4, 5, 6]]))
    *records, refused = sorted(
        predict(Client(models / "rows"), ["."]), key=lambda r: r["row"]
    )
    assert records == [
        {"file": "./a.csv", "row": 0, "prediction": 6.0},
        {"file": "./b.npy", "row": 0, "prediction": 6.0},
        {"file": "./a.csv", "row": 1, "error": "'five' is not a number"},
        {"file": "./b.npy", "row": 1, "prediction": 15.0},
        {"file": "./a.csv", "row": 2, "prediction": 0.1},
    ]
    assert refused["row"] == 3 and refused["error"] == "'' is not a number"


def test_a_model_that_takes_no_files_names_its_inputs(tmp_path):
    import tensorflow as tf

    spec = {"x": tf.TensorSpec((None, 2), tf.string)}
    served_models.save(tmp_path / "1", serving_default=(lambda x: {"y": x}, spec))
    with pytest.raises(
        UsageError, match=r"but x string \[\?, 2\]; use pipeline\.Client"
    ):
        predict(Client(tmp_path), ["a.png"])


def test_arrays_and_json_lines_are_rows_of_any_shape(workplace):
    values = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    np.save("all.npy", values)
    np.save("one.npy", values[0])
    with open("lines.jsonl", "w") as file:
        for row in values:
            file.write(json.dumps({"features": row.tolist(), "label": "x"}) + "\n")
    names = ["all.npy", "one.npy", "lines.jsonl"]
    items = list(file_predictions.rows(names, (4, 2)))
    assert [item.error for item in items] == [""] * 7
    expected = np.concatenate([values, values[:1], values])
    np.testing.assert_array_equal([item.value for item in items], expected)
    (first, *_) = file_predictions.rows(["all.npy"], (5, 2))
    assert first.error == "it has the shape (4, 2), but the model takes (5, 2)"
    Path("columns.jsonl").write_text('{"b": 2, "a": 1}\n\n{"a": 3}\nno\n')
    (item,) = file_predictions.rows(["columns.jsonl"], (2,), ["a", "b"])
    assert item.error.startswith("line 3 has no key 'b', which line 1 has")
    Path("columns.jsonl").write_text('{"b": 2, "a": 1}\n')
    (item,) = file_predictions.rows(["columns.jsonl"], (2,), ["a", "b"])
    assert item.value.tolist() == [1, 2]
