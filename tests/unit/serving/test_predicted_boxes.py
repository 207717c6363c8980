"""Boxes that `predict` prints, writes to files and draws."""

import json

import numpy as np
import pytest
import served_models
from PIL import Image

from pipeline import predict
from pipeline.utils.errors import UsageError


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    directory = tmp_path_factory.mktemp("detector") / "shapes/1"
    served_models.detector(directory)
    return str(directory)


def test_the_command_prints_boxes_and_draws_them(detector, workplace, capsys):
    for name in "ab":
        Image.new("RGB", (40, 40)).save(f"{name}.png")
    assert predict.main([detector, "a.png", "b.png", "--pictures", "drawn"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a.png  2 boxes" and lines[3] == "b.png  2 boxes"
    assert "cross" in lines[1] and "square" in lines[2] and len(lines) == 6
    with Image.open("drawn/a.jpg") as picture:
        drawn = np.asarray(picture, int)
    assert drawn.shape == (40, 40, 3)
    left, top, right, bottom = served_models.BOXES[1]
    assert drawn[top:bottom, [left, right - 1]].max(axis=(0, 2)).min() > 60
    assert drawn[top + 5 : bottom - 3, left + 4 : right - 4].max() < 60


def test_files_have_a_row_for_each_box_or_a_line_for_each_image(detector, workplace):
    Image.new("RGB", (40, 40)).save("a.png")
    assert predict.main([detector, "a.png", "--output", "boxes.csv"]) == 0
    header, *rows = (workplace / "boxes.csv").read_text().splitlines()
    assert header == "file,label,score,left,top,right,bottom"
    assert [row.split(",")[:2] for row in rows] == [
        ["a.png", "cross"],
        ["a.png", "square"],
    ]
    numbers = [[float(cell) for cell in row.split(",")[3:]] for row in rows]
    assert numbers == served_models.BOXES
    assert predict.main([detector, "a.png", "--output", "boxes.jsonl"]) == 0
    record = json.loads((workplace / "boxes.jsonl").read_text())
    assert record["count"] == 2 and record["labels"] == ["cross", "square"]
    assert record["boxes"] == served_models.BOXES


def test_pictures_need_a_model_that_finds_boxes(models, workplace):
    Image.new("RGB", (3, 4)).save("a.png")
    with pytest.raises(UsageError, match="--pictures .*find boxes"):
        predict.main([str(models / "pictures/1"), "a.png", "--pictures", "drawn"])
