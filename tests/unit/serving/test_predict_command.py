"""The command `predict`: its arguments, what it prints, and the files it leaves."""

import csv
import io
import os
import sys

import fake_serving
import numpy as np
import pytest
import served_models
from predict_command import IMAGES, number

from pipeline.serving.client import Client
from pipeline.utils.errors import UsageError

pytestmark = pytest.mark.usefixtures("no_proxy")


@pytest.fixture(scope="module")
def wanted(models):
    return Client(models / "pictures/1").predict(images=IMAGES)


def test_images_are_answered_in_order(predict_command, models, pictures, wanted):
    ran = predict_command(models / "pictures", "data", "--batch-size", "4", "--top=3")
    assert ran.code == 0 and [number(r) for r in ran.records] == [
        0,
        2,
        4,
        6,
        8,
        1,
        3,
        5,
        7,
    ]
    for record in ran.records:
        index = number(record)
        assert (
            record["label"]
            == wanted["label"][index]
            == served_models.CLASSES[record["class"]]
        )
        assert [one["label"] for one in record["top"]] == wanted["top_labels"][
            index, :3
        ].tolist()
        shares = [one["probability"] for one in record["top"]]
        np.testing.assert_allclose(shares, wanted["top_scores"][index, :3], rtol=1e-6)
        assert shares[0] == record["probability"]
    assert ran.said == "answered   9\n"


@pytest.mark.parametrize("form", ["rest", "rpc"])
def test_a_server_gives_the_same_answers(predict_command, models, pictures, form):
    (pictures / "a/broken.png").write_bytes(b"none")
    here = predict_command(models / "pictures", "data")
    with getattr(fake_serving, form)(
        fake_serving.Backend(pictures=models / "pictures/1")
    ) as address:
        there = predict_command(f"{address}/pictures", "data")
    assert there.code == here.code == 1 and len(there.records) == 9
    for one, other in zip(there.records, here.records, strict=True):
        assert one == {
            **other,
            "probability": pytest.approx(other["probability"], rel=1e-5),
        }
    assert there.said.splitlines()[0] == here.said.splitlines()[0]
    assert ", 1 skipped" in there.said


def test_names_are_read_from_stdin(predict_command, models, pictures, monkeypatch):
    names = [os.fsencode(path) for path in sorted((pictures / "a").iterdir())]
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\0".join([*names, b""])))
    )
    ran = predict_command(models / "pictures", "-", "data/b")
    assert ran.code == 0 and [number(r) for r in ran.records] == [
        0,
        2,
        4,
        6,
        8,
        1,
        3,
        5,
        7,
    ]


def test_a_table_has_a_header_and_columns_for_more_classes(
    predict_command, models, pictures
):
    ran = predict_command(
        models / "pictures", "data/a", "--format", "csv", "--top", "2"
    )
    table = list(csv.DictReader(io.StringIO(ran.text)))
    lines = predict_command(models / "pictures", "data/a", "--top", "2").records
    columns = ["file", "label", "class", "probability", "label_2", "probability_2"]
    assert list(table[0]) == columns and len(table) == 5
    for row, line in zip(table, lines, strict=True):
        line |= {f"{name}_2": value for name, value in line.pop("top")[1].items()}
        assert row == {name: str(value) for name, value in line.items()}


def test_the_output_file_is_replaced_once_it_is_complete(
    predict_command, models, pictures
):
    predictions = pictures.parent / "predictions"
    predictions.mkdir()
    (predictions / "link.csv").symlink_to("all.csv")
    assert (
        predict_command(
            models / "pictures", "data", "--output", "predictions/link.csv"
        ).text
        == ""
    )
    first = (predictions / "all.csv").read_text()
    assert first.startswith("file,label,") and len(first.splitlines()) == 10
    assert sorted(p.name for p in predictions.iterdir()) == ["all.csv", "link.csv"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "MODEL FILES .*such as saved_models/digits"),
        (["{models}/pictures", "data", "--form", "csv"], "'--form'; did you mean"),
        (
            ["{models}/pictures", "data", "--format", "xml"],
            "--format must be .*jsonl.*csv",
        ),
        (["{models}/pictures", "data", "--top", "0"], "--top must be .*1"),
        (
            ["{models}/pictures", "data", "--top", "6"],
            "--top must be at most 5, the classes",
        ),
        (["{models}/pictures", "data", "--output", "data"], "--output must be a file"),
        (
            ["{models}/pictures", "data", "--output", "data/a/bild ü0.png"],
            "is one of the input",
        ),
        (["nowhere", "data"], "'nowhere' is not a directory or address"),
        (["data", "data"], "contains no versions"),
        (["{models}/rows", "data"], r"data contains no files; .*rows takes \*.csv"),
    ],
)
def test_wrong_words_are_one_line(
    predict_command, models, pictures, monkeypatch, words, message
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(UsageError, match=message) as caught:
        predict_command(*(word.format(models=models) for word in words))
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
