"""Tables of files and labels: the columns are found, and what is missing is said."""

import shutil

import numpy as np
import pytest
from PIL import Image

from pipeline.data.sources.csv import csv
from pipeline.utils.errors import UsageError


@pytest.fixture
def table(tmp_path):
    """Writes a table next to images/1.png ... images/6.png and opens it."""
    (tmp_path / "images").mkdir()
    for number in range(1, 7):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"images/{number}.png")
    shutil.copytree(tmp_path / "images", tmp_path / ".thumbnails")

    def opened(text, name="labels.csv", **options):
        (tmp_path / name).write_text(text)
        return csv(path=tmp_path / name, **options)

    return opened


ROWS = {n: "cat" if n % 2 else "dog" for n in range(1, 7)}


@pytest.mark.parametrize(
    ("head", "row", "name", "options"),
    [
        ("path,label", "images/{},{}", "labels.csv", {}),
        ("id;breed;size", "{};{};3", "labels.csv", {}),  # names without suffixes, elsewhere
        ("Class Name\tFile", "{1}\t{0}.png", "labels.tsv", {}),
        ("where,Is,label", "images/{0}.png,{1},x", "a.csv", {"image": "Where", "label": "is"}),
        (" File Name , Label ", "images/{} , {} ", "labels.csv", {}),
    ],
)
def test_files_and_labels_are_found(table, head, row, name, options):
    suffix = ".png" if row.startswith("images/{},") else ""
    lines = [row.format(f"{n}{suffix}", label) for n, label in ROWS.items()]
    source = table("\n".join([head, *lines]), name, **options)
    assert source.info.class_names == ("cat", "dog") and source.info.splits == {"train": 6}
    examples = list(source.examples("train").as_numpy_iterator())
    assert [int(e["label"]) for e in examples] == [0, 1] * 3
    assert [source.location(int(e["id"])) for e in examples] == [f"images/{n}.png" for n in ROWS]
    assert source.info.image_shape == (4, 4, 3) and not source.info.notes


def test_splits_are_those_of_the_table(table):
    splits = ["train"] * 3 + ["Val", "test", "test"]
    lines = [f"{n},{ROWS[n]},{split}" for n, split in zip(ROWS, splits, strict=True)]
    source = table("\n".join(["id,label,split", *lines]))
    assert source.info.splits == {"train": 3, "validation": 1, "test": 2}
    np.testing.assert_array_equal(source.columns("test")["label"], [0, 1])


def test_rows_without_a_file_or_a_label_are_left_out_with_a_note(table):
    source = table("path,label\nimages/1.png,a\nimages/2.png,b\nimages/9.png,a\nimages/3.png,\n")
    assert source.info.splits == {"train": 2}
    (note,) = source.info.notes
    assert "2 of 4 rows have no label or no existing file" in note and "row 4" in note


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("path,label\n", "has no rows"),
        ("path,count\nimages/1.png,3\n", "no column label or class or class_name; it has path, co"),
        ("path,label\nx/7.png,a\nx/8.png,b\n", "2 of 2 rows .* no row is left for training"),
        ("path,label\nimages/1.png,a\nimages/1.png,b\n", "row 3: .*1.png occurs twice, with diff"),
        (
            "path,label\nimages/1.png,a\n./images/1.png,b\n",
            "row 3: ./images/1.png occurs twice, with",
        ),
        (
            "path,label,split\nimages/1.png,a,dev\n",
            "row 2: the split 'dev' is not one of train, val",
        ),
        (
            'path,label\nimages/1.png,a\n\nimages/2.png,"b\nimages/3.png,a\n',
            "line 4: unexpected end",
        ),
        ('path,label\nimages/1.png,"5 inch\nimages/2.png,"b\n', "line 2: ',' expected"),
        ("path,label\nimages/1.png," + "x" * 200_000, "line 2: field larger than field limit"),
    ],
)
def test_a_table_that_cannot_be_used_is_named_in_one_line(table, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        table(text)
    assert "labels.csv" in str(caught.value) and "\n" not in str(caught.value)
