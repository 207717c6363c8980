"""Texts for a model: files, tables, and lines of the standard input."""

import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.serving.file_predictions import predict, takes_texts
from pipeline.serving.signatures import Field, Signature

STRINGS = Field(np.dtype(object), (None,))


def model(name="text"):
    """A model that answers with the length of each text."""
    served = {"serving_default": Signature({name: STRINGS}, {"prediction": STRINGS})}

    def ask(signature, **inputs):
        lengths = [len(content) for content in inputs[name]]
        return {"prediction": np.array(lengths)}

    return SimpleNamespace(
        metadata=lambda: served, predict=ask, model="a model", feature_names=None
    )


def test_strings_are_texts_unless_their_name_says_bytes():
    assert takes_texts(model().metadata())
    assert takes_texts(model("title").metadata())
    assert not takes_texts(model("image_bytes").metadata())
    assert not takes_texts({})


def test_a_file_is_one_text(workplace):
    (workplace / "texts").mkdir()
    (workplace / "texts/a.txt").write_bytes(b"two\nlines\n")
    (workplace / "texts/b.jpg").write_bytes(b"no text")
    records = list(predict(model(), ["texts", "gone.txt"]))
    assert records[0] == {"file": "texts/a.txt", "prediction": 10}
    assert records[1] == {"file": "gone.txt", "error": "No such file or directory"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id,text\n1,abc\n2,\n"),
        ("a.tsv", "text\tlabel\nabc\tx\n\ty\n"),
        ("a.jsonl", '{"text": "abc"}\n{"text": null}\n'),
    ],
)
def test_a_table_has_a_text_in_each_row(workplace, name, content):
    (workplace / name).write_text(content)
    records = list(predict(model(), [name]))
    assert [record["prediction"] for record in records] == [3, 0]
    assert [record["row"] for record in records] == [0, 1]


def test_a_table_without_texts_is_one_line(workplace):
    (workplace / "a.csv").write_text("a,b\n1,2\n")
    (record,) = predict(model(), ["a.csv"])
    assert record["error"].startswith("it has no column of texts, but a, b;")


def test_a_table_that_cannot_be_read_is_named_once(workplace):
    (workplace / "a.csv").write_text('text,b\n"never closed\n')
    (record,) = predict(model(), ["a.csv"])
    assert record["error"].startswith("line 2: unexpected end of data")


def test_the_column_of_texts_is_that_of_training_or_of_an_option(workplace):
    (workplace / "a.csv").write_text("Body,text\nabc,a\n")
    trained = model()
    trained.input_column = "Body"
    for column, length in ((None, 3), ("text", 1)):
        (record,) = predict(trained, ["a.csv"], column=column)
        assert record["prediction"] == length
    (record,) = predict(trained, ["a.csv"], column="c")
    assert record["error"].startswith("it has no column c, but Body, text; --column")


def test_each_line_of_the_standard_input_is_a_text(monkeypatch):
    lines = io.BytesIO(b"abc\r\n\n\xff\0\nlast")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=lines))
    records = list(predict(model(), ["-"]))
    assert [record["prediction"] for record in records] == [3, 2, 4]
    assert [record["row"] for record in records] == [0, 2, 3]
