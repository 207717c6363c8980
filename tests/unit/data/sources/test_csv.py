"""Tables of files and labels: the columns are found, and what is missing is said."""

import shutil

import numpy as np
import pytest
from PIL import Image

from pipeline.data.sources.table import table as open_source


@pytest.fixture
def table(tmp_path):
    """Writes a table next to images/1.png ... images/6.png and opens it."""
    (tmp_path / "images").mkdir()
    for number in range(1, 7):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"images/{number}.png")
    shutil.copytree(tmp_path / "images", tmp_path / ".thumbnails")

    def open_table(text, name="labels.csv", **options):
        (tmp_path / name).write_text(text)
        return open_source(path=tmp_path / name, **options)

    return open_table


ROWS = {n: "cat" if n % 2 else "dog" for n in range(1, 7)}


@pytest.mark.parametrize(
    ("head", "row", "name", "options"),
    [
        ("path,label", "images/{},{}", "labels.csv", {}),
        (
            "id;breed;size",
            "{};{};3",
            "labels.csv",
            {},
        ),  # names without suffixes, elsewhere
        ("Class Name\tFile", "{1}\t{0}.png", "labels.tsv", {}),
        (
            "where,Is,label",
            "images/{0}.png,{1},x",
            "a.csv",
            {"image": "Where", "label": "is"},
        ),
        (" File Name , Label ", "images/{} , {} ", "labels.csv", {}),
    ],
)
def test_files_and_labels_are_found(table, head, row, name, options):
    suffix = ".png" if row.startswith("images/{},") else ""
    lines = [row.format(f"{n}{suffix}", label) for n, label in ROWS.items()]
    source = table("\n".join([head, *lines]), name, **options)
    assert source.info.class_names == ("cat", "dog") and source.info.splits == {
        "train": 6
    }
    examples = list(source.examples("train").as_numpy_iterator())
    assert [int(e["label"]) for e in examples] == [0, 1] * 3
    assert [source.location(int(e["id"])) for e in examples] == [
        f"images/{n}.png" for n in ROWS
    ]
    assert source.info.image_shape == (4, 4, 3)
    others = {"id;breed;size": "size", "where,Is,label": "label"}
    name = others.get(head)
    remedy = f"; --source.columns {name} makes them inputs, too"
    notes = [f"{name!r}{remedy}"] if name else []
    assert [n.partition("left out: ")[2] for n in source.info.notes[1:]] == notes


def test_splits_are_those_of_the_table(table):
    splits = ["train"] * 3 + ["Val", "test", "test"]
    lines = [f"{n},{ROWS[n]},{split}" for n, split in zip(ROWS, splits, strict=True)]
    source = table("\n".join(["id,label,split", *lines]))
    assert source.info.splits == {"train": 3, "validation": 1, "test": 2}
    np.testing.assert_array_equal(source.columns("test")["label"], [0, 1])


def test_rows_without_a_file_or_a_label_are_left_out_with_a_note(table):
    source = table(
        "path,label\nimages/1.png,a\nimages/2.png,b\n/no/9.png,a\nimages/3.png,\n"
    )
    assert source.info.splits == {"train": 2}
    (note,) = source.info.notes
    assert note.endswith(
        "no label or no existing file in 2 of 4 rows, such as row 4 ('/no/9.png');"
        " left out"
    )


@pytest.fixture
def classes(tmp_path):
    """Writes a table next to pictures/cat/1.png ... 3.png and pictures/dog/1.png ...
    3.png.
    """
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(1, 4):
            picture = Image.new("RGB", (4, 4), (number, len(name), 0))
            picture.save(tmp_path / f"pictures/{name}/{number}.png")

    def open_table(*rows):
        (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]))
        return open_source(path=tmp_path / "labels.csv")

    return open_table


CLASSES = [(name, number) for name in ("cat", "dog") for number in range(1, 4)]


@pytest.mark.parametrize(
    ("form", "is_moved"),
    [
        ("pictures/{}/{}.png", False),
        ("pictures\\{}\\{}.png", False),
        (".\\pictures\\{}\\{}.png", False),
        ("/home/ana/set/pictures/{}/{}.png", True),
        ("C:\\Users\\Ana\\{}\\{}.PNG", True),
        ("{}/{}", True),
    ],
)
def test_paths_of_another_machine_are_found_by_their_last_parts(
    classes, form, is_moved
):
    source = classes(*(f"{form.format(*row)},{row[0]}" for row in CLASSES))
    examples = list(source.examples("train").as_numpy_iterator())
    places = [source.location(int(e["id"])) for e in examples]
    assert places == [f"pictures/{name}/{number}.png" for name, number in CLASSES]
    assert [int(e["label"]) for e in examples] == [0, 0, 0, 1, 1, 1]
    assert len(source.info.notes) == is_moved
    for note in source.info.notes:
        assert "6 of 6 files are not where the table says" in note
        assert "such as pictures/cat/1.png for " in note


def test_a_missing_file_is_not_that_of_another_class(classes, tmp_path):
    (tmp_path / "pictures/cat/3.png").rename(tmp_path / "pictures/dog/4.png")
    rows = [f"/x/{name}/{number}.png,{name}" for name, number in CLASSES]
    source = classes(*rows, "/x/cat/4.png,cat")
    assert source.info.splits == {"train": 5}
    assert "in 2 of 7 rows, such as row 4 ('/x/cat/3.png')" in source.info.notes[1]


def test_numbers_are_classes_in_the_order_of_their_values(classes):
    numbers = ("2", "10", "1", "2", "9", "nan")
    files = [f"pictures/{name}/{number}.png" for name, number in CLASSES]
    rows = [f"{file},{number}" for file, number in zip(files, numbers, strict=True)]
    source = classes(*rows)
    assert source.info.class_names == ("1", "2", "9", "10")
    np.testing.assert_array_equal(source.columns("train")["label"], [1, 3, 0, 1, 2])
    assert "such as row 7 " in source.info.notes[0]
    floats = [row.replace(",10", ",10.0").replace(",nan", ",9.0") for row in rows]
    assert classes(*floats).info.class_names == ("1", "2", "9", "10")
