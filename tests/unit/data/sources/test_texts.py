"""Tables and directories of texts."""

import json

import numpy as np
import pytest
from toy_problem import read

from pipeline.config import command_line, registry


def opened(path, content, **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    registry.check("sources", "table", {"path": path, **options}, "{}")
    return registry.call("sources", "table", {"path": path, **options})


CSV = 'id,Review,sentiment\n7,"good, ""fine""\nfilm",pos\n8,caf\u00e9,neg\n9,12,pos\n'
TSV = "text\tlabel\ngood\tpos\nbad\tneg\nold\tpos\n"
LINES = "".join(
    json.dumps({"text": value, "label": stars / 2}) + "\n"
    for value, stars in (("good", 3), ("b\ud800d", 1), ("old", 2))
)


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.csv", CSV, [b'good, "fine"\nfilm', b"caf\xc3\xa9", b"12"]),
        ("a.tsv", TSV, [b"good", b"bad", b"old"]),
        ("a.jsonl", LINES, [b"good", "b\ufffdd".encode(), b"old"]),
    ],
)
def test_a_column_of_texts_is_found_by_its_name(tmp_path, name, content, texts):
    source = opened(tmp_path / name, content)
    examples = read(source)
    assert [example["text"] for example in examples] == texts
    assert "inputs are the" in source.info.notes[0]
    if name == "a.jsonl":
        assert [float(example["target"]) for example in examples] == [1.5, 0.5, 1]
    else:
        assert [int(example["label"]) for example in examples] == [1, 0, 1]
    config = command_line.recipe(str(tmp_path / name))
    assert config.recipe == "texts"


def test_the_column_can_be_set_and_others_name_splits_and_groups(tmp_path):
    content = "a,split,group,label\nx,train,1,u\ny,train,2,v\nz,test,3,u\n"
    source = opened(tmp_path / "a.csv", content, column="a", group="group")
    assert dict(source.info.splits) == {"train": 2, "test": 1}
    assert source.group_names().keys() == {"1", "2", "3"}


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_options_of_the_input_leave_the_column_of_texts(tmp_path, name):
    row = {"text": "good", "label": "pos"}
    lines = ["text,label", "good,pos"] if name == "a.csv" else [json.dumps(row)]
    (tmp_path / name).write_text("\n".join(lines))
    config = command_line.configure([str(tmp_path / name), "--task.input", "text"])
    assert config.recipe == "texts"
    source = registry.call("sources", config.source.name, config.source.options)
    assert read(source)[0]["text"] == b"good"


def test_rows_without_a_text_or_a_label_are_left_out_with_a_note(tmp_path):
    source = opened(tmp_path / "a.csv", "text,label\na,x\n ,x\nb,\nc,y\n")
    assert source.info.splits["train"] == 2
    assert (
        "no text or no value in 'label' in 2 of 4 rows, such as row 3; left"
        in source.info.notes[1]
    )
    ids = [int(example["id"]) for example in read(source)]
    assert [source.location(id) for id in ids] == ["row 2 of a.csv", "row 5 of a.csv"]


def test_a_text_of_ten_million_characters_is_read(tmp_path):
    source = opened(tmp_path / "a.csv", f"text,label\n{'x ' * 5_000_000},a\ny,b\n")
    assert len(read(source)[0]["text"]) == 9_999_999


def test_class_folders_of_text_files_are_texts(tmp_path):
    for label in ("pos", "neg"):
        for number in range(3):
            path = tmp_path / "texts" / label / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{label} {number}")
    config = command_line.recipe(str(tmp_path / "texts"))
    assert config.recipe == "texts" and config.source.name == "folder"
    source = registry.call("sources", "folder", {"path": tmp_path / "texts"})
    examples = read(source)
    assert [example["text"] for example in examples][:2] == [b"neg 0", b"neg 1"]
    np.testing.assert_array_equal(
        [int(example["label"]) for example in examples], [0, 0, 0, 1, 1, 1]
    )


def test_a_column_of_names_of_text_files_has_their_content(tmp_path):
    (tmp_path / "1.txt").write_text("good")
    (tmp_path / "2.txt").write_text("bad")
    source = opened(tmp_path / "a.csv", "text,label\n1.txt,x\n2.txt,y\n")
    assert [example["text"] for example in read(source)] == [b"good", b"bad"]


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        (
            ["x", "0.5", "y", "x"],
            "1 of 4 labels are numbers unlike the others, such as",
        ),
        (["1", "2", "b5", "1"], "1 of 4 labels are words unlike the others, such as"),
    ],
)
def test_labels_that_are_words_and_numbers_are_noted_with_a_row(tmp_path, labels, note):
    rows = "".join(f"t{row},{label}\n" for row, label in enumerate(labels))
    source = opened(tmp_path / "a.csv", f"text,label\n{rows}")
    assert note in source.info.notes[1]
    odd = next(row for row in (1, 2) if labels[row] in ("0.5", "b5"))
    assert f"{labels[odd]}' in row {odd + 2}; each is a class" in source.info.notes[1]


def test_labels_with_decimals_are_numbers_to_predict(tmp_path):
    source = opened(tmp_path / "a.csv", "text,label\na,0.5\nb,1.0\nc,0.25\n")
    assert [float(example["target"]) for example in read(source)] == [0.5, 1, 0.25]


def test_bytes_that_are_no_utf_8_are_texts_of_files_and_nul_one_of_tables(tmp_path):
    contents = [b"a\0b", b"\xff\xfe ok", b""]
    for number, content in enumerate(contents):
        path = tmp_path / "texts" / "xy"[number % 2] / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    source = registry.call("sources", "folder", {"path": tmp_path / "texts"})
    assert {example["text"] for example in read(source)} == {*contents}
    table = opened(tmp_path / "a.csv", "text,label\na\0b,x\nc,y\n")
    assert read(table)[0]["text"] == b"a\0b"
